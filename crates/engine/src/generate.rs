//! The loop from a prompt to tokens: prefill in chunks, then one token a step.

use crate::workers::Workers;
use crate::{BlockPool, EngineError, Speculation};
use std::ops::ControlFlow;
use std::sync::Arc;
use tombolo_model::{BLOCK_TOKENS, Backend, Before, Capacity, Row, Sampling, Sequence, Step, StepOutput, Token};

/// What the engine must know of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// KV groups.
    pub groups: usize,
    /// It has a block that drafts tokens.
    pub drafts: bool,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The caller's callback broke off: a stop token, a stop string, a cancel.
    Stopped,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    ContextFull,
}

/// One sequence: the tokens whose keys and values are in the cache, and the blocks that hold them. It belongs to the
/// engine that made it and must be given back with [`Engine::close`].
#[derive(Debug)]
pub struct Context {
    pub(crate) tokens: Vec<u32>,
    pub(crate) tables: Vec<Vec<u32>>,
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
    pub(crate) shape: Shape,
    pub(crate) capacity: Capacity,
    pools: Vec<BlockPool>,
    /// Steps that were submitted and not collected.
    in_flight: usize,
    /// What the last step leaves to the next.
    before: Before,
    overlaps: bool,
    /// Most tokens that are drafted for a step.
    pub(crate) draft_max: usize,
    pub(crate) speculation: Speculation,
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
            draft_max: 0,
            speculation: Speculation::default(),
            between_chunks: Box::new(|_, _| ControlFlow::Continue(())),
        }
    }

    /// Asks `go_on` before every chunk of a prompt, with how many of its tokens were run and how many there are; breaking
    /// off ends the generation as [`Finish::Stopped`]. It is told when all were run, too. Between tokens the caller of
    /// [`Engine::generate`] is asked anyway.
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
        self.workers.collect()
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
    pub(crate) fn reserve(&mut self, context: &mut Context, tokens: usize) -> Result<(), EngineError> {
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
        Ok(self.prefill_drafting(context, tokens, sampling, full_logits, 0)?.0)
    }

    /// The same, and drafts of what comes after the token that was drawn, for a generation of `max_tokens`.
    fn prefill_drafting(
        &mut self,
        context: &mut Context,
        tokens: &[u32],
        sampling: &Sampling,
        full_logits: bool,
        max_tokens: usize,
    ) -> Result<(StepOutput, Vec<u32>), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let total = context.tokens.len() + tokens.len();
        if total > self.capacity.context {
            return Err(EngineError::PromptTooLong { tokens: total, context: self.capacity.context });
        }
        self.reserve(context, total)?;
        let chunk = if full_logits { self.capacity.rows.min(self.capacity.logits) } else { self.capacity.rows };
        let (mut all, mut drafts) = (StepOutput::default(), Vec::new());
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
            if self.draft_max > 0 {
                let following = if last { output.tokens[output.tokens.len() - 1] } else { tokens[tokens.len() - left] };
                let next: Vec<u32> = part[1..].iter().copied().chain([following]).collect();
                let wanted = if last { self.drafts_wanted(context, max_tokens) } else { 0 };
                drafts = self.draft(context, first, &next, sampling, wanted)?;
            }
            all.tokens = output.tokens;
            all.logits.extend(output.logits);
        }
        let _ = (self.between_chunks)(tokens.len(), tokens.len());
        Ok((all, drafts))
    }

    /// Generates up to `max_tokens` tokens after `prompt`, handing each to `on_token` as soon as it is known. What the
    /// context already holds of the prompt is not run again.
    pub fn generate(
        &mut self,
        context: &mut Context,
        prompt: &[u32],
        sampling: &Sampling,
        max_tokens: usize,
        mut on_token: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Finish, EngineError> {
        // At least one token must be run, for its logits.
        let same = context.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        self.truncate(context, same.min(prompt.len().saturating_sub(1)));
        let rest = &prompt[context.tokens.len()..];
        if max_tokens == 0 {
            return Ok(Finish::Length);
        }
        let (output, drafts) = match self.prefill_drafting(context, rest, sampling, false, max_tokens) {
            Err(EngineError::Cancelled) => return Ok(Finish::Stopped),
            output => output?,
        };
        let mut token = output.tokens[0];
        if self.draft_max > 0 {
            return self.generate_speculating(context, token, drafts, sampling, max_tokens, on_token);
        }
        let room = self.capacity.context - context.tokens.len();
        let overlap = self.overlaps && sampling.is_greedy();
        // Token number `n` is drawn by step `n - 1`; with overlap that step was started before the token before it was
        // seen, and its result is thrown away where the generation ends there.
        for n in 1.. {
            let finish = if n == max_tokens { Some(Finish::Length) } else { (n > room).then_some(Finish::ContextFull) };
            if on_token(token).is_break() {
                self.drain()?;
                return Ok(Finish::Stopped);
            }
            if let Some(finish) = finish {
                self.drain()?;
                return Ok(finish);
            }
            if self.in_flight == 0 {
                self.submit_next(&mut [context], &[Token::Host(token)], sampling)?;
            }
            if overlap && n + 1 < max_tokens && n < room {
                self.reserve(context, context.tokens.len() + 2)?;
                self.submit_ahead(context, sampling)?;
            }
            let output = self.collect()?;
            context.tokens.push(token);
            token = output.tokens[0];
        }
        unreachable!("the loop ends by length")
    }

    /// Starts the step after the one in flight, from the token that the device will draw there.
    fn submit_ahead(&mut self, context: &Context, sampling: &Sampling) -> Result<(), EngineError> {
        let row = Row {
            token: Token::Prev(0),
            position: context.tokens.len() as u32 + 1,
            sequence: 0,
            sample: Some(*sampling),
            draft: false,
        };
        let sequences = vec![Sequence { tables: context.tables.clone() }];
        self.submit(Step { rows: vec![row], sequences, ..Step::default() })
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

    fn drain(&mut self) -> Result<(), EngineError> {
        while self.in_flight > 0 {
            self.collect()?;
        }
        Ok(())
    }
}
