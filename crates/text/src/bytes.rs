//! Byte-level BPE's alphabet: every byte has a printable character, so that a vocabulary of text can spell any bytes.
//! The mapping is GPT-2's: printable Latin-1 stands for itself, the other 68 bytes take U+0100 upwards in order.

/// Whether a byte stands for itself: `!` to `~`, `¡` to `¬`, `®` to `ÿ`.
const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The character of every byte.
pub(crate) static CHARS: [char; 256] = chars();

/// The byte of every character up to [`CHARS`]'s last, and -1 where there is none.
static BYTES: [i16; 0x144] = bytes();

const fn chars() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut next = 0x100;
    let mut byte = 0;
    while byte < 256 {
        let code = if stands_for_itself(byte as u8) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        table[byte] = match char::from_u32(code) {
            Some(c) => c,
            None => panic!("codes below U+0144 are characters"),
        };
        byte += 1;
    }
    table
}

const fn bytes() -> [i16; 0x144] {
    let mut table = [-1; 0x144];
    let chars = chars();
    let mut byte = 0;
    while byte < 256 {
        table[chars[byte] as usize] = byte as i16;
        byte += 1;
    }
    table
}

/// Appends the bytes that `token` spells. A character outside the alphabet stands for its own UTF-8.
pub(crate) fn unspell(token: &str, out: &mut Vec<u8>) {
    for c in token.chars() {
        match BYTES.get(c as usize).and_then(|b| u8::try_from(*b).ok()) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255u8 {
            let c = CHARS[usize::from(byte)];
            assert!(seen.insert(c), "{c:?} stands for two bytes");
            assert!(!c.is_whitespace() && !c.is_control(), "{byte:#x} is {c:?}");
            let mut back = Vec::new();
            unspell(&c.to_string(), &mut back);
            assert_eq!(back, [byte]);
        }
        // The three characters that everyone who has read such a vocabulary knows.
        assert_eq!((CHARS[0x20], CHARS[0x0a], CHARS[0xff]), ('Ġ', 'Ċ', 'ÿ'));
    }
}
