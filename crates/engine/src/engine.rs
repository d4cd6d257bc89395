//! A model that is driven by hand: prompts and steps of contexts that the caller keeps. Benchmarks and comparisons do;
//! requests go through the [`Runner`](crate::Runner).

use crate::workers::Workers;
use crate::{BlockPool, EngineError};
use std::ops::ControlFlow;
use std::sync::Arc;
use tombolo_model::{
    BLOCK_TOKENS, Backend, Before, Capacity, NO_TOKEN, Row, Sampling, Sequence, Step, StepOutput, Token,
};

/// What the engine must know of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// KV groups.
    pub groups: usize,
}

/// One sequence: the tokens whose keys and values are in the cache, and the blocks that hold them. It belongs to the
/// engine that made it and must be given back with [`Engine::close`].
#[derive(Debug)]
pub struct Context {
    tokens: Vec<u32>,
    tables: Vec<Vec<u32>>,
}

impl Context {
    /// Tokens in the cache.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// A model that runs: its ranks and its KV blocks.
pub struct Engine {
    workers: Workers,
    shape: Shape,
    capacity: Capacity,
    pools: Vec<BlockPool>,
    /// Steps that were submitted and not collected.
    in_flight: usize,
    /// What the last step leaves to the next.
    before: Before,
    overlaps: bool,
    between_chunks: Box<dyn FnMut(usize, usize) -> ControlFlow<()> + Send>,
}

impl Engine {
    /// Takes over the loaded ranks, in rank order.
    pub fn new(backends: Vec<Box<dyn Backend>>, shape: Shape, capacity: Capacity) -> Self {
        assert!(!backends.is_empty(), "a model has at least one rank");
        let overlaps = backends.iter().all(|b| b.is_asynchronous());
        Self {
            workers: Workers::start(backends),
            shape,
            capacity,
            pools: vec![BlockPool::new(capacity.blocks); shape.groups],
            in_flight: 0,
            before: Before::default(),
            overlaps,
            between_chunks: Box::new(|_, _| ControlFlow::Continue(())),
        }
    }

    /// Asks `go_on` before every chunk of a prompt, with how many of its tokens were run and how many there are; breaking
    /// off ends it as [`EngineError::Cancelled`]. It is told when all were run, too.
    pub fn set_between_chunks(&mut self, go_on: impl FnMut(usize, usize) -> ControlFlow<()> + Send + 'static) {
        self.between_chunks = Box::new(go_on);
    }

    /// What the ranks were loaded for.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Starts a step after checking every index in it. At most two may be in flight.
    pub fn submit(&mut self, step: Step) -> Result<(), EngineError> {
        assert!(self.in_flight < 2, "two steps in flight is the most that a backend takes");
        step.check(&self.capacity, self.shape.groups, self.shape.vocabulary, self.before)?;
        self.before = step.left();
        self.in_flight += 1;
        self.workers.submit(&Arc::new(step));
        Ok(())
    }

    /// Waits for the oldest step in flight.
    pub fn collect(&mut self) -> Result<StepOutput, EngineError> {
        assert!(self.in_flight > 0, "a step is in flight");
        self.in_flight -= 1;
        let output = self.workers.collect()?;
        if output.tokens.contains(&NO_TOKEN) { Err(EngineError::NotNumbers) } else { Ok(output) }
    }

    /// Runs one step to its end.
    pub fn run(&mut self, step: Step) -> Result<StepOutput, EngineError> {
        self.submit(step)?;
        self.collect()
    }

    /// An empty context.
    pub fn open(&self) -> Context {
        Context { tokens: Vec::new(), tables: vec![Vec::new(); self.shape.groups] }
    }

    /// Gives a context's blocks back.
    pub fn close(&mut self, mut context: Context) {
        self.truncate(&mut context, 0);
    }

    /// KV blocks that are free in every group.
    pub fn free_blocks(&self) -> usize {
        self.pools.iter().map(BlockPool::free).min().unwrap_or(0)
    }

    /// Forgets all but the first `keep` tokens.
    pub fn truncate(&mut self, context: &mut Context, keep: usize) {
        context.tokens.truncate(keep);
        let blocks = context.tokens.len().div_ceil(BLOCK_TOKENS);
        for (table, pool) in context.tables.iter_mut().zip(&mut self.pools) {
            table.drain(blocks.min(table.len())..).for_each(|block| pool.give(block));
        }
    }

    /// Makes room for `tokens` tokens in all.
    fn reserve(&mut self, context: &mut Context, tokens: usize) -> Result<(), EngineError> {
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        for (table, pool) in context.tables.iter_mut().zip(&mut self.pools) {
            while table.len() < blocks {
                table.push(pool.take().ok_or(EngineError::NoBlocks { blocks: pool.total() })?);
            }
        }
        Ok(())
    }

    /// Runs `tokens` after what the context holds, in chunks of as many rows as a step takes. The last chunk's last row
    /// draws the next token; with `full_logits` every row wants logits, and all of them come back.
    ///
    /// # Errors
    /// An empty prompt, one too long, no blocks left, [`EngineError::Cancelled`], or a failed rank.
    pub fn prefill(
        &mut self,
        context: &mut Context,
        tokens: &[u32],
        sampling: &Sampling,
        full_logits: bool,
    ) -> Result<StepOutput, EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let total = context.tokens.len() + tokens.len();
        if total > self.capacity.context {
            return Err(EngineError::PromptTooLong { tokens: total, context: self.capacity.context });
        }
        self.reserve(context, total)?;
        let chunk = if full_logits { self.capacity.rows.min(self.capacity.logits) } else { self.capacity.rows };
        let mut all = StepOutput::default();
        let mut left = tokens.len();
        for part in tokens.chunks(chunk) {
            if (self.between_chunks)(tokens.len() - left, tokens.len()).is_break() {
                return Err(EngineError::Cancelled);
            }
            left -= part.len();
            let first = context.tokens.len();
            let last = left == 0;
            let rows = part.iter().enumerate().map(|(i, &token)| Row {
                token: Token::Host(token),
                position: (first + i) as u32,
                sequence: 0,
                sample: (full_logits || (last && i + 1 == part.len())).then_some(*sampling),
                draft: false,
            });
            let sequences = vec![Sequence { tables: context.tables.clone() }];
            let output = self.run(Step { rows: rows.collect(), sequences, full_logits, ..Step::default() })?;
            context.tokens.extend_from_slice(part);
            all.tokens = output.tokens;
            all.logits.extend(output.logits);
        }
        let _ = (self.between_chunks)(tokens.len(), tokens.len());
        Ok(all)
    }

    /// Starts a step of one row per context; the caller pushes the tokens when it knows them.
    fn submit_next(
        &mut self,
        contexts: &mut [&mut Context],
        tokens: &[Token],
        sampling: &Sampling,
    ) -> Result<(), EngineError> {
        let mut step = Step::default();
        for (i, (context, &token)) in contexts.iter_mut().zip(tokens).enumerate() {
            let position = context.tokens.len();
            self.reserve(context, position + 1)?;
            step.rows.push(Row {
                token,
                position: position as u32,
                sequence: i as u32,
                sample: Some(*sampling),
                draft: false,
            });
            step.sequences.push(Sequence { tables: context.tables.clone() });
        }
        self.submit(step)
    }

    /// Decodes `steps` greedy tokens for every context at once, starting from `tokens`: the work that benchmarks time.
    /// Where the device can, the next step starts before the host has seen the last.
    pub fn decode_greedy(
        &mut self,
        contexts: &mut [Context],
        tokens: &[u32],
        steps: usize,
    ) -> Result<Vec<u32>, EngineError> {
        assert_eq!(contexts.len(), tokens.len());
        let mut tokens = tokens.to_vec();
        let ahead = if self.overlaps { 2 } else { 1 };
        let mut submitted = 0;
        for done in 0..steps {
            while submitted < steps && submitted < done + ahead {
                let next: Vec<Token> = if self.in_flight == 0 {
                    tokens.iter().map(|&t| Token::Host(t)).collect()
                } else {
                    (0..tokens.len() as u32).map(Token::Prev).collect()
                };
                let mut all: Vec<&mut Context> = contexts.iter_mut().collect();
                self.submit_next(&mut all, &next, &Sampling::GREEDY)?;
                // The position is taken now; the token itself is filled in when it is known.
                contexts.iter_mut().zip(&tokens).for_each(|(c, &t)| c.tokens.push(t));
                submitted += 1;
            }
            let output = self.collect()?;
            tokens = output.tokens;
            // Steps after this one were started with this token unseen.
            let unseen = submitted - done - 1;
            if unseen > 0 {
                for (context, &token) in contexts.iter_mut().zip(&tokens) {
                    let at = context.tokens.len() - unseen;
                    context.tokens[at] = token;
                }
            }
        }
        Ok(tokens)
    }
}
