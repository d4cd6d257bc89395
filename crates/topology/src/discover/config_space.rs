//! The configuration space of a PCI bridge, as the kernel shows it to root. Only access control is read.

/// Where extended capabilities begin (PCI Express Base Specification, 7.6).
const EXTENDED: usize = 0x100;
/// The identifier of access control services.
const ACS: u32 = 0x000d;
/// Request and completion redirect in the control register.
const REDIRECT: u16 = 0b1100;
/// Capabilities are at least so far apart, so that a list that goes round is left.
const CAPABILITIES_MAX: usize = (4096 - EXTENDED) / 4;

/// Whether a bridge redirects peer traffic to the root. `None` if the space is not readable this far (that takes root);
/// `Some(false)` too where the bridge has no access control at all.
pub(super) fn redirects(space: &[u8]) -> Option<bool> {
    if space.len() <= EXTENDED {
        return None;
    }
    let word = |at: usize| space.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    let mut at = EXTENDED;
    for _ in 0..CAPABILITIES_MAX {
        let header = word(at)?;
        if header & 0xffff == ACS {
            let control = word(at + 4)? >> 16;
            return Some(control as u16 & REDIRECT != 0);
        }
        at = (header >> 20) as usize & !3;
        if at < EXTENDED {
            return Some(false);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(capabilities: &[(usize, u32, u32)]) -> Vec<u8> {
        let mut space = vec![0; 4096];
        for &(at, header, next) in capabilities {
            space[at..at + 4].copy_from_slice(&header.to_le_bytes());
            space[at + 4..at + 8].copy_from_slice(&next.to_le_bytes());
        }
        space
    }

    #[test]
    fn access_control_is_found_in_the_list() {
        let acs = |control: u32| space(&[(0x100, 0x0001 | 0x148 << 20, 0), (0x148, ACS | 1 << 16, control << 16)]);
        assert_eq!(redirects(&acs(0b1101)), Some(true));
        assert_eq!(redirects(&acs(0b0001)), Some(false));
        assert_eq!(redirects(&space(&[(0x100, 0x0001, 0)])), Some(false));
        assert_eq!(redirects(&[0; 64]), None);
        assert_eq!(redirects(&space(&[(0x100, 0x0001 | 0x100 << 20, 0)])), Some(false), "a list that goes round");
        assert_eq!(redirects(&space(&[(0x100, 0x0001 | 0xffc << 20, 0),])), Some(false), "a list that ends outside");
        assert_eq!(redirects(&vec![0xff; 0x104]), None);
    }
}
