//! The scheduler against a model that is a hash: requests that come, are cancelled, outgrow the blocks and share prefixes,
//! at random, by a seed. Whatever happens, each gets the text that it would have got alone, and ends exactly once.

use std::collections::HashMap;
use std::sync::Arc;
use tombolo_engine::{Drafts, Event, Extra, Penalties, Reason, Request, RequestId, Scheduler, Settings};
use tombolo_model::{BLOCK_TOKENS, Before, Capacity, Pass, Sampling, Step, StepOutput, Token};

const VOCABULARY: usize = 64;
const CONTEXT: usize = 160;

/// Numbers from a seed (splitmix64, Steele et al. 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn hash(tokens: &[u32]) -> u64 {
    tokens.iter().fold(7, |hash, &token| (hash * 31 + u64::from(token) + 1) % 1_000_003)
}

/// Repeats itself often enough for n-grams to guess right at times.
fn token_after(tokens: &[u32]) -> u32 {
    let last = &tokens[tokens.len().saturating_sub(3)..];
    (hash(last) % (VOCABULARY as u64 - 2)) as u32
}

/// The model, run on what stands in the blocks: a wrong table, a stale position or a block that was given away shows.
#[derive(Default)]
struct Model {
    cache: HashMap<(u32, usize), u32>,
    /// Of every row of the last step: the tokens that its hidden state knows of.
    hidden: Vec<Vec<u32>>,
    /// Block and slot, with the token after each position that the drafting block has run.
    drafted: HashMap<(u32, usize), u32>,
    before: Before,
    drawn: Vec<u32>,
    steps: usize,
    ahead: usize,
}

fn at(table: &[u32], position: usize) -> (u32, usize) {
    (table[position / BLOCK_TOKENS], position % BLOCK_TOKENS)
}

impl Model {
    fn run(&mut self, step: &Step, settings: &Settings) -> StepOutput {
        step.check(&settings.capacity, settings.groups, settings.vocabulary, self.before).unwrap();
        self.before = step.left();
        self.steps += 1;
        let mut output = StepOutput::default();
        let mut hidden = Vec::new();
        for (i, row) in step.rows.iter().enumerate() {
            let token = match row.token {
                Token::Host(token) => token,
                Token::Prev(index) => self.drawn[index as usize],
            };
            let tables = &step.sequences[row.sequence as usize].tables;
            assert!(tables.iter().all(|table| *table == tables[0]));
            let (table, position) = (&tables[0], row.position as usize);
            let known = match &step.pass {
                Pass::Trunk => {
                    self.cache.insert(at(table, position), token);
                    (0..=position).map(|p| self.cache[&at(table, p)]).collect::<Vec<_>>()
                }
                Pass::Draft { hidden } => {
                    let mut known = self.hidden[hidden[i] as usize].clone();
                    assert_eq!(known.len(), position + 1, "a row goes on from its own position's state");
                    known.push(token);
                    self.drafted.insert(at(table, position), token);
                    known
                }
            };
            if row.sample.is_some() {
                let is_wrong = step.pass != Pass::Trunk && hash(&known).is_multiple_of(3);
                let drawn = token_after(&known) ^ u32::from(is_wrong);
                output.tokens.push(drawn);
                if step.full_logits {
                    output.logits.extend((0..VOCABULARY as u32).map(|t| if t == drawn { 9.0 } else { -(t as f32) }));
                }
            }
            hidden.push(known);
        }
        self.hidden = hidden;
        self.drawn.clone_from(&output.tokens);
        output
    }
}

/// What a request must be given.
struct Expected {
    prompt: Vec<u32>,
    text: Vec<u32>,
    reason: Reason,
    given: Vec<u32>,
    is_cancelled: bool,
    ended: Option<Reason>,
    prompt_logprobs: Option<usize>,
}

fn expected(request: &Request) -> Expected {
    let mut all = request.prompt.clone();
    let mut reason = Reason::Length;
    let room = CONTEXT + 1 - request.prompt.len();
    while all.len() < request.prompt.len() + request.max_tokens.min(room) {
        all.push(token_after(&all));
        if request.stop.contains(&all[all.len() - 1]) {
            reason = Reason::Stop;
            break;
        }
    }
    let prompt_logprobs = request.extra.as_ref().and_then(|extra| extra.prompt_logprobs);
    Expected {
        prompt: request.prompt.clone(),
        text: all.split_off(request.prompt.len()),
        reason,
        given: Vec::new(),
        is_cancelled: false,
        ended: None,
        prompt_logprobs: prompt_logprobs.map(|_| request.prompt.len() - 1),
    }
}

fn request(random: &mut Random) -> Request {
    // Prompts that begin alike, in blocks and beyond.
    let shared = [0, 20, 64, 100][random.below(4)];
    let family = random.below(3) as u32;
    let own = 1 + random.below(50);
    let prompt = (0..shared as u32).map(|i| (i * 7 + family) % 50).chain((0..own).map(|_| random.below(50) as u32));
    let prompt: Vec<u32> = prompt.take(CONTEXT).collect();
    let mut request = Request::new(prompt, 1 + random.below(140), Sampling::GREEDY);
    if random.one_in(3) {
        request.stop = Arc::from([random.below(60) as u32, 70 % 64]);
    }
    request.priority = [0, 0, 0, 5, -1][random.below(5)];
    request.owner = random.below(3) as u64;
    request.salt = random.below(2) as u64;
    if random.one_in(4) {
        let mut extra = Extra { logprobs: random.one_in(2).then_some(2), ..Extra::default() };
        if random.one_in(2) {
            extra.prompt_logprobs = Some(1);
        }
        if random.one_in(2) {
            // Too small to change what is likeliest.
            extra.penalties = Penalties { presence: 0.01, ..Penalties::default() };
        }
        request.extra = Some(Box::new(extra));
    }
    request
}

fn settings(random: &mut Random) -> Settings {
    let sequences = 1 + random.below(6);
    let drafts = match random.below(3) {
        0 => Drafts::None,
        1 => Drafts::Block(1 + random.below(3)),
        _ => Drafts::Ngram(1 + random.below(4)),
    };
    let logits = sequences + random.below(sequences * drafts.most() + 1);
    let rows = logits.max(1 + random.below(48));
    let least = CONTEXT.div_ceil(BLOCK_TOKENS);
    let blocks = least + random.below(6);
    let capacity = Capacity { rows, sequences, logits, context: CONTEXT, blocks };
    let groups = 1 + random.below(2);
    Settings {
        capacity,
        vocabulary: VOCABULARY,
        groups,
        waiting_max: 12,
        prefix_cache: !random.one_in(4),
        drafts,
        max_itl_factor: random.one_in(2).then_some(1.5),
    }
}

struct Simulation {
    random: Random,
    settings: Settings,
    scheduler: Scheduler,
    model: Model,
    requests: HashMap<RequestId, Expected>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let settings = settings(&mut random);
        let scheduler = Scheduler::new(settings);
        Self { random, settings, scheduler, model: Model::default(), requests: HashMap::new() }
    }

    fn run(mut self) -> [u64; 4] {
        let mut to_come = 3 + self.random.below(15);
        let mut idle = 0;
        while to_come > 0 || !self.scheduler.is_idle() {
            if to_come > 0 && self.random.one_in(3) {
                to_come -= 1;
                let mut request = request(&mut self.random);
                if self.random.one_in(2) {
                    self.go_on_with_another(&mut request);
                }
                let want = expected(&request);
                if let Ok(id) = self.scheduler.add(request) {
                    self.requests.insert(id, want);
                }
            }
            self.cancel_some();
            match self.scheduler.schedule() {
                Some(step) => {
                    idle = 0;
                    let mut output = self.model.run(&step, &self.settings);
                    // While it runs, the next ones may be begun.
                    while self.random.one_in(2) {
                        self.cancel_some();
                        let Some(ahead) = self.scheduler.schedule_ahead() else { break };
                        self.model.ahead += 1;
                        let next = self.model.run(&ahead, &self.settings);
                        self.cancel_some();
                        self.time_passes();
                        self.scheduler.commit(&output);
                        output = next;
                    }
                    self.cancel_some();
                    self.time_passes();
                    self.scheduler.commit(&output);
                }
                None => idle += 1,
            }
            assert!(idle < 200, "nothing moves any more");
            assert!(self.model.steps < 20_000, "no end to be seen");
            self.events();
            self.scheduler.check_blocks();
        }
        for (id, request) in &self.requests {
            assert!(request.ended.is_some(), "{id:?} never ended");
        }
        let figures = self.scheduler.figures();
        assert_eq!((figures.running, figures.waiting, figures.free_blocks), (0, 0, figures.blocks));
        [figures.preemptions, figures.prefix_hits, figures.accepted.iter().sum(), self.model.ahead as u64]
    }

    /// The next turn of a conversation: what was asked before, its answer, and more.
    fn go_on_with_another(&mut self, request: &mut Request) {
        let ended = self.requests.values().filter(|r| r.ended.is_some() && r.prompt.len() + r.given.len() < CONTEXT);
        let Some(before) = ended.min_by_key(|r| hash(&r.prompt)) else { return };
        let cut = self.random.below(before.given.len() + 1);
        let mut prompt = [&before.prompt[..], &before.given[..cut]].concat();
        prompt.extend(request.prompt.iter().take(CONTEXT - prompt.len()));
        request.prompt = prompt;
    }

    /// A step took between nothing and ten seconds.
    fn time_passes(&mut self) {
        let seconds = self.random.below(10_000) as f64 * 1e-3;
        self.scheduler.took(seconds);
    }

    fn cancel_some(&mut self) {
        if self.random.one_in(40) {
            let mut open: Vec<RequestId> =
                self.requests.iter().filter(|(_, r)| r.ended.is_none()).map(|(id, _)| *id).collect();
            open.sort();
            if !open.is_empty() {
                let id = open[self.random.below(open.len())];
                self.requests.get_mut(&id).unwrap().is_cancelled = true;
                self.scheduler.cancel(id);
            }
        }
    }

    fn events(&mut self) {
        for event in self.scheduler.take_events() {
            match event {
                Event::Started(_) => {}
                Event::PromptLogprobs(id, logprobs) => {
                    let request = self.requests.get_mut(&id).unwrap();
                    assert_eq!(request.prompt_logprobs.take(), Some(logprobs.len()));
                    for (at, told) in logprobs.iter().enumerate() {
                        assert_eq!(told.top[0].0, token_after(&request.prompt[..=at]));
                    }
                    assert!(request.given.is_empty());
                }
                Event::Token { id, token, logprobs } => {
                    let request = self.requests.get_mut(&id).unwrap();
                    assert!(request.ended.is_none(), "a token after the end");
                    // What was drawn is the likeliest, and told of its own row.
                    assert!(logprobs.is_none_or(|told| told.rank == 1 && told.top[0].0 == token));
                    request.given.push(token);
                    assert_eq!(request.given, request.text[..request.given.len()]);
                }
                Event::Finished { id, reason, .. } => {
                    let request = self.requests.get_mut(&id).unwrap();
                    assert!(request.ended.is_none(), "it ends twice");
                    if reason == Reason::Cancelled {
                        assert!(request.is_cancelled);
                    } else {
                        assert_eq!((&reason, &request.given), (&request.reason, &request.text));
                        assert!(request.prompt_logprobs.is_none_or(|n| n == 0));
                    }
                    request.ended = Some(reason);
                }
            }
        }
    }
}

fn simulate(seeds: std::ops::Range<u64>) {
    let mut sums = [0; 4];
    for seed in seeds {
        let run = std::panic::catch_unwind(|| Simulation::new(seed).run());
        let Ok(run) = run else { panic!("seed {seed}") };
        sums.iter_mut().zip(run).for_each(|(sum, n)| *sum += n);
    }
    let [preemptions, hits, accepted, ahead] = sums;
    println!("{preemptions} preemptions, {hits} prompt tokens found, {accepted} drafts accepted, {ahead} steps ahead");
    // What is simulated does happen.
    assert!(sums.iter().all(|&n| n > 0));
}

#[test]
fn requests_get_what_they_would_have_got_alone() {
    simulate(0..250);
}

#[test]
#[ignore = "a hundred thousand seeds: minutes"]
fn requests_get_what_they_would_have_got_alone_at_length() {
    simulate(0..100_000);
}
