//! KV blocks: who uses them, and what they hold that can be used again (the prefix cache).
//!
//! A full block is known by the one before it and by its own tokens, compared whole: no hash of a prompt can be mistaken
//! for that of another. The last block of what ended, which is not full, is taken over by whoever goes on with the same
//! tokens: the next turn of a conversation runs nothing again. Blocks that nobody uses are taken again when there is need,
//! those that hold nothing first, then the longest unused; the end of a prompt goes before its beginning.

use std::collections::{BTreeMap, HashMap};
use tombolo_model::BLOCK_TOKENS;

/// What stands before a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Before {
    /// Nothing; what has another salt is never shared.
    Start {
        /// Of the request.
        salt: u64,
    },
    /// The block that had this name. Names are never given twice.
    Block(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    before: Before,
    tokens: [u32; BLOCK_TOKENS],
}

/// Unfinished blocks that are remembered after one.
const ENDS_MAX: usize = 8;

#[derive(Clone, Debug, Default)]
struct Block {
    users: u32,
    /// Its place among those that nobody uses.
    idle_since: u64,
    /// Under which it is known, and its name.
    known: Option<(Key, u64)>,
    /// What it holds if it is an end, which is not full, and what stands before it.
    end: Option<(Before, Vec<u32>)>,
}

impl Block {
    fn holds_something(&self) -> bool {
        self.known.is_some() || self.end.is_some()
    }
}

/// All KV blocks of a model: a number stands for a block in every KV group.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    /// Blocks without users, by whether they hold something known and since when.
    idle: BTreeMap<(bool, u64), u32>,
    known: HashMap<Key, u32>,
    /// Idle blocks that are not full, by what stands before them.
    ends: HashMap<Before, Vec<u32>>,
    now: u64,
    names: u64,
}

impl Blocks {
    pub(crate) fn new(total: usize) -> Self {
        let count = u32::try_from(total).expect("a model has fewer than 2^32 blocks");
        let blocks = (0..count).map(|i| Block { idle_since: u64::from(i), ..Block::default() }).collect();
        let idle = (0..count).map(|i| ((false, u64::from(i)), i)).collect();
        Self { blocks, idle, known: HashMap::new(), ends: HashMap::new(), now: u64::from(count), names: 0 }
    }

    pub(crate) fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that can be taken.
    pub(crate) fn free(&self) -> usize {
        self.idle.len()
    }

    /// Takes a block; what it held is forgotten.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let (_, &number) = self.idle.first_key_value()?;
        self.forget_end(number);
        self.share(number);
        if let Some((key, _)) = self.blocks[number as usize].known.take() {
            self.known.remove(&key);
        }
        Some(number)
    }

    /// Gives back the last block of a sequence, which holds these tokens and is not full.
    pub(crate) fn give_end(&mut self, number: u32, before: Before, tokens: &[u32]) {
        let block = &mut self.blocks[number as usize];
        let ends = self.ends.entry(before).or_default();
        if block.users == 1 && block.known.is_none() && !tokens.is_empty() && ends.len() < ENDS_MAX {
            block.end = Some((before, tokens.to_vec()));
            ends.push(number);
        }
        if ends.is_empty() {
            self.ends.remove(&before);
        }
        self.give(number);
    }

    /// Takes over the block after `before` that begins with most of `tokens`; how many those are.
    pub(crate) fn take_end(&mut self, before: Before, tokens: &[u32]) -> Option<(u32, usize)> {
        let in_common = |number: u32| {
            let held = self.blocks[number as usize].end.iter().flat_map(|(_, held)| held);
            held.zip(tokens).take_while(|(a, b)| a == b).count()
        };
        let ends = self.ends.get(&before)?.iter().map(|&number| (number, in_common(number)));
        let best = ends.max_by_key(|&(_, count)| count).filter(|&(_, count)| count > 0)?;
        // Its place among the idle depends on what it holds.
        self.share(best.0);
        self.forget_end(best.0);
        Some(best)
    }

    fn forget_end(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        let was = (block.holds_something(), block.idle_since);
        let Some((before, _)) = block.end.take() else { return };
        if block.users == 0 {
            self.idle.remove(&was);
            self.idle.insert((block.holds_something(), block.idle_since), number);
        }
        if let Some(ends) = self.ends.get_mut(&before) {
            ends.retain(|&end| end != number);
            if ends.is_empty() {
                self.ends.remove(&before);
            }
        }
    }

    /// Ends one use of a block.
    pub(crate) fn give(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        block.users = block.users.checked_sub(1).expect("a block that is given back was taken");
        if block.users == 0 {
            self.now += 1;
            block.idle_since = self.now;
            self.idle.insert((block.holds_something(), self.now), number);
        }
    }

    /// The known blocks with which `tokens` begin, whole ones, in order; nobody's use of them changes.
    pub(crate) fn find(&self, salt: u64, tokens: &[u32]) -> Vec<u32> {
        let mut before = Before::Start { salt };
        let (whole, _) = tokens.as_chunks();
        let next = |tokens: &[u32; BLOCK_TOKENS]| {
            let number = *self.known.get(&Key { before, tokens: *tokens })?;
            before = Before::Block(self.blocks[number as usize].known?.1);
            Some(number)
        };
        whole.iter().map_while(next).collect()
    }

    /// Of those blocks, how many would not be free any more if they were used.
    pub(crate) fn idle_among(&self, numbers: &[u32]) -> usize {
        numbers.iter().filter(|&&number| self.blocks[number as usize].users == 0).count()
    }

    /// One use more of a block.
    pub(crate) fn share(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        if block.users == 0 {
            self.idle.remove(&(block.holds_something(), block.idle_since));
        }
        block.users += 1;
    }

    /// Makes a block that is in use and full known by its tokens; what stands before the next one. Where the same is known
    /// already, that block stays the known one.
    pub(crate) fn remember(&mut self, number: u32, before: Before, tokens: [u32; BLOCK_TOKENS]) -> Before {
        let key = Key { before, tokens };
        if let Some(&same) = self.known.get(&key)
            && let Some((_, name)) = self.blocks[same as usize].known
        {
            return Before::Block(name);
        }
        self.names += 1;
        self.blocks[number as usize].known = Some((key, self.names));
        self.known.insert(key, number);
        Before::Block(self.names)
    }

    /// What stands before the block after this one, which [`Blocks::find`] gave.
    pub(crate) fn after(&self, number: u32) -> Option<Before> {
        self.blocks[number as usize].known.map(|(_, name)| Before::Block(name))
    }

    /// Checks itself: every block is idle or in use, and what is known is where it is said to be.
    ///
    /// # Panics
    /// It is not so.
    pub(crate) fn check<'a>(&self, tables: impl Iterator<Item = &'a [u32]>) {
        let mut users = vec![0; self.blocks.len()];
        tables.flatten().for_each(|&number| users[number as usize] += 1);
        for (i, (block, users)) in self.blocks.iter().zip(users).enumerate() {
            assert_eq!(block.users, users, "block {i}");
            let place = self.idle.get(&(block.holds_something(), block.idle_since));
            assert_eq!(place == Some(&(i as u32)), users == 0, "block {i}");
            let is_end = |(before, _): &(Before, _)| self.ends[before].contains(&(i as u32));
            assert!(block.end.as_ref().is_none_or(|end| is_end(end) && block.users == 0 && block.known.is_none()));
            assert!(block.known.is_none_or(|(key, _)| self.known[&key] == i as u32), "block {i}");
        }
        assert!(self.known.values().all(|&number| self.blocks[number as usize].known.is_some()));
        assert!(self.ends.values().flatten().all(|&number| self.blocks[number as usize].end.is_some()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = BLOCK_TOKENS;

    fn tokens(blocks: &[u32]) -> Vec<u32> {
        blocks.iter().flat_map(|&b| [b; N]).collect()
    }

    /// Takes and remembers blocks for all of `tokens`, and lets them go.
    fn fill(cache: &mut Blocks, salt: u64, tokens: &[u32]) -> Vec<u32> {
        let mut before = Before::Start { salt };
        let taken: Vec<u32> = tokens.chunks(N).map(|_| cache.take().unwrap()).collect();
        for (&number, tokens) in taken.iter().zip(tokens.as_chunks::<N>().0) {
            before = cache.remember(number, before, *tokens);
        }
        cache.check([&taken[..]].into_iter());
        taken.iter().rev().for_each(|&number| cache.give(number));
        taken
    }

    #[test]
    fn a_prefix_is_found_by_its_tokens_and_what_was_before_them() {
        let mut cache = Blocks::new(8);
        let first = fill(&mut cache, 0, &tokens(&[1, 2, 3]));
        assert_eq!(cache.find(0, &tokens(&[1, 2, 3, 4])), first);
        assert_eq!(cache.find(0, &tokens(&[1, 2])), first[..2]);
        assert_eq!(cache.find(0, &tokens(&[1, 3])), first[..1]);
        assert!(cache.find(0, &tokens(&[2, 3])).is_empty());
        assert!(cache.find(7, &tokens(&[1, 2])).is_empty(), "another salt");
        assert_eq!(cache.find(0, &tokens(&[1, 2])[..2 * N - 1]), first[..1], "whole blocks only");
        cache.check(std::iter::empty());
    }

    #[test]
    fn what_is_longest_unused_goes_first_and_ends_before_beginnings() {
        let mut cache = Blocks::new(6);
        let first = fill(&mut cache, 0, &tokens(&[1, 2, 3]));
        let second = fill(&mut cache, 0, &tokens(&[4, 5]));
        // One holds nothing.
        let empty = cache.take().unwrap();
        assert!(!first.contains(&empty) && !second.contains(&empty));
        assert_eq!(cache.take(), Some(first[2]));
        assert_eq!(cache.find(0, &tokens(&[1, 2, 3])), first[..2]);
        cache.share(first[0]);
        let rest: Vec<u32> = std::iter::from_fn(|| cache.take()).collect();
        assert_eq!(rest, [first[1], second[1], second[0]]);
        cache.give(first[0]);
        assert_eq!(cache.find(0, &tokens(&[1, 2])), first[..1]);
        assert_eq!(cache.free(), 1);
    }

    #[test]
    fn an_end_is_taken_over_by_what_goes_on_with_it() {
        let mut cache = Blocks::new(4);
        let before = Before::Start { salt: 0 };
        let (a, b) = (cache.take().unwrap(), cache.take().unwrap());
        cache.give_end(a, before, &[1, 2, 3]);
        cache.give_end(b, before, &[1, 2, 4, 5]);
        cache.check(std::iter::empty());
        assert_eq!(cache.take_end(Before::Start { salt: 1 }, &[1, 2]), None);
        assert_eq!(cache.take_end(before, &[9]), None);
        assert_eq!(cache.take_end(before, &[1, 2, 4, 6, 7]), Some((b, 3)));
        cache.check([&[b][..]].into_iter());
        // What is taken for something else is not found any more, and it is taken last.
        let others = [cache.take().unwrap(), cache.take().unwrap()];
        assert!(!others.contains(&a));
        assert_eq!(cache.take(), Some(a));
        assert_eq!(cache.take_end(before, &[1, 2, 3]), None);
        cache.check([&[a, b][..], &others].into_iter());
    }

    #[test]
    fn the_same_tokens_twice_are_known_once() {
        let mut cache = Blocks::new(4);
        let (a, b) = (cache.take().unwrap(), cache.take().unwrap());
        let before = Before::Start { salt: 0 };
        let after = cache.remember(a, before, [1; N]);
        assert_eq!(cache.remember(b, before, [1; N]), after);
        assert_eq!(cache.find(0, &[1; N]), [a]);
        cache.give(b);
        assert_eq!((cache.after(a), cache.after(b)), (Some(after), None));
        cache.check([&[a][..]].into_iter());
    }
}
