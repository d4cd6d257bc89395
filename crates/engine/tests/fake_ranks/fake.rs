//! A rank that is none: what it draws is known without any engine.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tombolo_model::{BLOCK_TOKENS, Backend, BackendError, Capacity, Step, StepOutput, Token};

pub(crate) const VOCABULARY: usize = 97;
pub(crate) const CAPACITY: Capacity = Capacity { rows: 8, sequences: 4, logits: 4, context: 100, blocks: 8 };

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    Panics,
    Silent,
    Broken,
    DrawsWrong,
}

/// A model whose next token is a hash of all tokens before it, read back out of "KV blocks": a wrong block table, a
/// wrong position or a stale token gives another text.
pub(crate) struct Fake {
    cache: HashMap<(u32, usize), u32>,
    answers: VecDeque<StepOutput>,
    last: Vec<u32>,
    asynchronous: bool,
    fault: Fault,
}

impl Fake {
    pub(crate) fn boxed(asynchronous: bool, fault: Fault) -> Box<dyn Backend> {
        Box::new(Fake { cache: HashMap::new(), answers: VecDeque::new(), last: Vec::new(), asynchronous, fault })
    }

    fn draw(&self, table: &[u32], position: u32) -> u32 {
        let hash = (0..=position as usize).fold(7u64, |hash, p| {
            let token = self.cache[&(table[p / BLOCK_TOKENS], p % BLOCK_TOKENS)];
            (hash * 31 + u64::from(token) + 1) % 1_000_003
        });
        (hash % VOCABULARY as u64) as u32
    }
}

impl Backend for Fake {
    fn describe(&self) -> String {
        "fake".into()
    }

    fn is_asynchronous(&self) -> bool {
        self.asynchronous
    }

    fn submit(&mut self, step: Arc<Step>) -> Result<(), BackendError> {
        match self.fault {
            Fault::Panics => panic!("boom"),
            Fault::Silent => {
                let what = "all_reduce_add_norm".to_string();
                return Err(BackendError::RankSilent { rank: 0, silent: 1, waited_ms: 5, what });
            }
            Fault::Broken => {
                return Err(BackendError::Device { device: "fake".into(), message: "broke".into() });
            }
            _ => {}
        }
        let mut output = StepOutput::default();
        for row in &step.rows {
            let token = match row.token {
                Token::Host(token) => token,
                Token::Prev(index) => self.last[index as usize],
            };
            let table = &step.sequences[row.sequence as usize].tables[0];
            let p = row.position as usize;
            self.cache.insert((table[p / BLOCK_TOKENS], p % BLOCK_TOKENS), token);
            if row.sample.is_some() {
                let drawn = self.draw(table, row.position);
                output.tokens.push(if self.fault == Fault::DrawsWrong { drawn ^ 1 } else { drawn });
                if step.full_logits {
                    output.logits.extend((0..VOCABULARY as u32).map(|token| if token == drawn { 9.0 } else { 0.0 }));
                }
            }
        }
        self.last = output.tokens.clone();
        self.answers.push_back(output);
        Ok(())
    }

    fn collect(&mut self) -> Result<StepOutput, BackendError> {
        Ok(self.answers.pop_front().expect("submitted before"))
    }
}

/// The text that the hash model must give, computed without any engine.
pub(crate) fn expected(prompt: &[u32], n: usize) -> Vec<u32> {
    let mut all = prompt.to_vec();
    for _ in 0..n {
        let hash = all.iter().fold(7u64, |h, &t| (h * 31 + u64::from(t) + 1) % 1_000_003);
        all.push((hash % VOCABULARY as u64) as u32);
    }
    all.split_off(prompt.len())
}
