//! Speculation over a fake rank: a model whose next token is a hash of all before it, and a drafting block that is right
//! about most of them. Whatever is drafted, what is handed up is what the model alone says.

use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use tombolo_engine::{Context, Engine, Finish, Shape};
use tombolo_model::{BLOCK_TOKENS, Backend, BackendError, Capacity, Pass, Sampling, Step, StepOutput, Token};

const VOCABULARY: usize = 97;
const CONTEXT: usize = 100;

struct Fake {
    /// By block and slot, the token after each position that the block has run: what it would attend to.
    drafted: Arc<Mutex<HashMap<(u32, usize), u32>>>,
    trunk: HashMap<(u32, usize), u32>,
    answers: VecDeque<StepOutput>,
    /// Of every row of the last step: the tokens that its hidden state knows of.
    hidden: Vec<Vec<u32>>,
    /// One guess in so many is wrong.
    wrong: u64,
}

fn hash(tokens: &[u32]) -> u64 {
    tokens.iter().fold(7, |hash, &token| (hash * 31 + u64::from(token) + 1) % 1_000_003)
}

fn token_after(tokens: &[u32]) -> u32 {
    (hash(tokens) % VOCABULARY as u64) as u32
}

fn at(table: &[u32], position: usize) -> (u32, usize) {
    (table[position / BLOCK_TOKENS], position % BLOCK_TOKENS)
}

impl Backend for Fake {
    fn describe(&self) -> String {
        "fake".into()
    }

    fn submit(&mut self, step: Arc<Step>) -> Result<(), BackendError> {
        let mut output = StepOutput::default();
        let mut hidden = Vec::new();
        for (i, row) in step.rows.iter().enumerate() {
            let Token::Host(token) = row.token else { panic!("the host knows every token here") };
            let (table, position) = (&step.sequences[0].tables[0], row.position as usize);
            let (known, drawn) = match &step.pass {
                Pass::Trunk => {
                    self.trunk.insert(at(table, position), token);
                    let known: Vec<u32> = (0..=position).map(|p| self.trunk[&at(table, p)]).collect();
                    let drawn = token_after(&known);
                    (known, drawn)
                }
                Pass::Draft { hidden } => {
                    let mut known = self.hidden[hidden[i] as usize].clone();
                    assert_eq!(known.len(), position + 1, "a row goes on from its own position's state");
                    known.push(token);
                    self.drafted.lock().unwrap().insert(at(table, position), token);
                    let is_wrong = hash(&known).is_multiple_of(self.wrong);
                    let drawn = token_after(&known) ^ u32::from(is_wrong);
                    (known, drawn)
                }
            };
            hidden.push(known);
            output.tokens.extend(row.sample.map(|_| drawn));
        }
        self.hidden = hidden;
        self.answers.push_back(output);
        Ok(())
    }

    fn collect(&mut self) -> Result<StepOutput, BackendError> {
        Ok(self.answers.pop_front().expect("submitted before"))
    }
}

/// The text that the model must give, computed without any engine.
fn expected(prompt: &[u32], n: usize) -> Vec<u32> {
    let mut all = prompt.to_vec();
    for _ in 0..n {
        all.push(token_after(&all));
    }
    all.split_off(prompt.len())
}

proptest! {
    #[test]
    fn drafts_change_nothing_but_the_number_of_steps(
        prompt in prop::collection::vec(0u32..97, 1..90),
        more in prop::collection::vec(0u32..97, 1..5),
        draft_max in 0usize..6,
        rows in 1usize..9,
        wrong in 1u64..6,
        max_tokens in 1usize..120,
        stop_at in 1usize..60,
    ) {
        let capacity = Capacity { rows, sequences: 1, logits: 4, context: CONTEXT, blocks: 4 };
        let drafted = Arc::default();
        let fake = Fake {
            drafted: Arc::clone(&drafted),
            trunk: HashMap::new(),
            answers: VecDeque::new(),
            hidden: Vec::new(),
            wrong,
        };
        let shape = Shape { vocabulary: VOCABULARY + 1, groups: 1, drafts: true };
        let mut engine = Engine::new(vec![Box::new(fake)], shape, capacity);
        engine.set_draft_max(draft_max);
        prop_assert_eq!(engine.draft_max(), draft_max.min(rows - 1).min(3));
        let mut context = engine.open();

        let (text, finish) = generate(&mut engine, &mut context, &prompt, max_tokens, usize::MAX);
        let room = CONTEXT - prompt.len() + 1;
        prop_assert_eq!(&text, &expected(&prompt, max_tokens.min(room)));
        prop_assert_eq!(finish, if max_tokens <= room { Finish::Length } else { Finish::ContextFull });
        let all = [prompt.clone(), text].concat();
        prop_assert_eq!(context.tokens(), &all[..all.len() - 1]);
        if engine.draft_max() > 0 {
            // The block has seen every position, with the token that did come after it.
            for p in 0..context.tokens().len() {
                let table = (0..4u32).map(|block| (block, p % BLOCK_TOKENS));
                let seen: Vec<u32> = table.filter_map(|key| drafted.lock().unwrap().get(&key).copied()).collect();
                prop_assert!(seen.contains(&all[p + 1]), "position {}", p);
            }
        }
        let speculation = engine.speculation();
        prop_assert!(speculation.accepted <= speculation.drafted);
        prop_assert!(wrong > 1 || speculation.accepted == 0);

        // Stopped anywhere, a context can be gone on with.
        engine.truncate(&mut context, prompt.len() / 2);
        let prompt = [&prompt[..prompt.len() / 2], &more].concat();
        let (text, _) = generate(&mut engine, &mut context, &prompt, 200, stop_at);
        prop_assert_eq!(&text, &expected(&prompt, text.len()));
        let held = [prompt.clone(), text].concat();
        prop_assert_eq!(context.tokens(), &held[..held.len() - 1]);
        let (text, _) = generate(&mut engine, &mut context, &held[..held.len().min(CONTEXT)], 5, 5);
        prop_assert_eq!(&text, &expected(&held[..held.len().min(CONTEXT)], text.len()));
        engine.close(context);
        prop_assert_eq!(engine.free_blocks(), 4);
    }
}

fn generate(engine: &mut Engine, context: &mut Context, prompt: &[u32], n: usize, stop: usize) -> (Vec<u32>, Finish) {
    let mut text = Vec::new();
    let on_token = |token| {
        text.push(token);
        if text.len() == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let finish = engine.generate(context, prompt, &Sampling::GREEDY, n, on_token).unwrap();
    (text, finish)
}

#[test]
fn good_guesses_save_steps() {
    let fake = |wrong| -> Box<dyn Backend> {
        Box::new(Fake {
            drafted: Arc::default(),
            trunk: HashMap::new(),
            answers: VecDeque::new(),
            hidden: Vec::new(),
            wrong,
        })
    };
    let acceptance = |wrong| {
        let capacity = Capacity { rows: 8, sequences: 1, logits: 4, context: 1024, blocks: 32 };
        let shape = Shape { vocabulary: VOCABULARY + 1, groups: 1, drafts: true };
        let mut engine = Engine::new(vec![fake(wrong)], shape, capacity);
        assert_eq!(engine.speculation().acceptance(), None);
        engine.set_draft_max(3);
        let mut context = engine.open();
        generate(&mut engine, &mut context, &[1, 2, 3], 1000, usize::MAX);
        engine.close(context);
        engine.speculation()
    };
    let (never, always) = (acceptance(1), acceptance(1_000_003));
    assert_eq!((never.acceptance(), never.steps), (Some(0.0), 998));
    assert_eq!((always.acceptance(), always.steps), (Some(1.0), 250));
}
