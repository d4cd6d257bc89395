//! Guesses by what followed the last tokens where they occurred before (prompt lookup).

/// Longest run of last tokens that is looked for.
const LONGEST: usize = 4;
/// Shortest one.
const SHORTEST: usize = 2;
/// How far back it is looked.
const BACK_MAX: usize = 4096;

/// Up to `most` tokens that followed the latest earlier occurrence of the last ones, the longest run of them that occurred.
pub(crate) fn guess(tokens: &[u32], most: usize) -> Vec<u32> {
    let tokens = &tokens[tokens.len().saturating_sub(BACK_MAX)..];
    if most == 0 {
        return Vec::new();
    }
    for length in (SHORTEST..=LONGEST).rev().filter(|&length| length < tokens.len()) {
        let last = &tokens[tokens.len() - length..];
        // Before the end: where it ends must be followed by something.
        let earlier = tokens[..tokens.len() - 1].windows(length).rposition(|run| run == last);
        if let Some(at) = earlier {
            let next = at + length;
            return tokens[next..tokens.len().min(next + most)].to_vec();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::guess;

    #[test]
    fn what_followed_before_is_guessed() {
        assert_eq!(guess(&[1, 2, 3, 4, 1, 2], 3), [3, 4, 1]);
        assert_eq!(guess(&[1, 2, 3, 1, 2, 9, 1, 2], 1), [9], "the latest one");
        assert_eq!(guess(&[5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 1), [7], "the longest one");
        assert_eq!(guess(&[3, 3, 3], 4), [3]);
        assert!(guess(&[1, 2, 3], 2).is_empty() && guess(&[1], 2).is_empty() && guess(&[1, 2, 1, 2], 0).is_empty());
    }
}
