//! Masks that take long, fail or never come: they end their own request, in time, and nobody else's.

use crate::fake::{CAPACITY, Fake, Fault, VOCABULARY, expected};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tombolo_engine::{
    Drafts, Event, Extra, Interrupt, MASKS_LEFT_MAX, Mask, MaskFault, Reason, Refused, Request, RequestId, Runner,
    Settings,
};
use tombolo_model::Sampling;

/// Shorter than in earnest, and longer than a thread is ever kept waiting.
const LIMIT: Duration = Duration::from_millis(700);

fn runner(asynchronous: bool) -> Runner {
    let settings = Settings {
        capacity: CAPACITY,
        vocabulary: VOCABULARY,
        groups: 1,
        waiting_max: 64,
        prefix_cache: true,
        drafts: Drafts::None,
        max_itl_factor: None,
    };
    let mut runner = Runner::new(vec![Fake::boxed(asynchronous, Fault::None)], settings);
    runner.set_mask_limit(LIMIT);
    runner
}

/// Allows token after token of a text, and waits before one of them until somebody lets it go.
#[derive(Debug)]
struct Says {
    text: Vec<u32>,
    said: usize,
    words: Vec<u32>,
    /// Where it waits, and for what.
    stops_at: Option<usize>,
    release: Arc<Mutex<Receiver<()>>>,
    panics: bool,
    dropped: Arc<AtomicUsize>,
    interrupted: Arc<AtomicUsize>,
}

struct Stage {
    release: Sender<()>,
    waits: Arc<Mutex<Receiver<()>>>,
    dropped: Arc<AtomicUsize>,
    interrupted: Arc<AtomicUsize>,
}

impl Stage {
    fn new() -> Self {
        let (release, waits) = channel();
        Self { release, waits: Arc::new(Mutex::new(waits)), dropped: Arc::default(), interrupted: Arc::default() }
    }

    fn says(&self, text: &[u32], stops_at: Option<usize>, panics: bool) -> Box<dyn Mask> {
        let (dropped, interrupted) = (self.dropped.clone(), self.interrupted.clone());
        let release = self.waits.clone();
        Box::new(Says {
            text: text.to_vec(),
            said: 0,
            words: Vec::new(),
            stops_at,
            release,
            panics,
            dropped,
            interrupted,
        })
    }

    fn request(&self, prompt: &[u32], stops_at: Option<usize>, panics: bool) -> Request {
        let text: Vec<u32> = (0..20).map(|i| (i * 11 + prompt[0]) % VOCABULARY as u32).collect();
        let mut request = Request::new(prompt.to_vec(), text.len(), Sampling::GREEDY);
        request.extra = Some(Box::new(Extra { mask: Some(self.says(&text, stops_at, panics)), ..Extra::default() }));
        request
    }

    fn wait(&self, dropped: usize) {
        let started = Instant::now();
        while self.dropped.load(Ordering::Acquire) < dropped {
            assert!(started.elapsed() < Duration::from_secs(60), "a thread that is done ends");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Mask for Says {
    fn allowed(&mut self) -> Option<&[u32]> {
        if self.stops_at == Some(self.said) {
            assert!(!self.panics, "a mask that panics");
            // Whoever drops the other end lets all go.
            let _ = self.release.lock().unwrap().recv();
        }
        let token = self.text[self.said];
        self.words = vec![0; VOCABULARY.div_ceil(32)];
        self.words[token as usize / 32] = 1 << (token % 32);
        Some(&self.words)
    }

    fn accept(&mut self, token: u32) {
        assert_eq!(token, self.text[self.said]);
        self.said += 1;
    }

    fn interrupt(&mut self) -> Option<Interrupt> {
        let interrupted = self.interrupted.clone();
        Some(Box::new(move || _ = interrupted.fetch_add(1, Ordering::AcqRel)))
    }
}

impl Drop for Says {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::AcqRel);
    }
}

/// Runs until all of some requests are over: their tokens and ends.
fn run(runner: &mut Runner, ids: &[RequestId]) -> Vec<(Vec<u32>, Reason)> {
    let mut all: Vec<(Vec<u32>, Option<Reason>)> = ids.iter().map(|_| (Vec::new(), None)).collect();
    while all.iter().any(|(_, reason)| reason.is_none()) {
        runner.step(|_| ()).unwrap();
        for event in runner.take_events() {
            let at = |id: RequestId| ids.iter().position(|known| *known == id);
            match event {
                Event::Token { id, token, .. } => all[at(id).unwrap()].0.push(token),
                Event::Finished { id, reason, .. } => all[at(id).unwrap()].1 = Some(reason),
                _ => {}
            }
        }
    }
    all.into_iter().map(|(text, reason)| (text, reason.unwrap())).collect()
}

fn plain(prompt: &[u32], tokens: usize) -> Request {
    Request::new(prompt.to_vec(), tokens, Sampling::GREEDY)
}

#[test]
fn a_mask_that_never_comes_ends_its_request_and_no_other() {
    for asynchronous in [false, true] {
        let (mut runner, stage) = (runner(asynchronous), Stage::new());
        let whole = stage.request(&[3, 4], None, false);
        let stuck = stage.request(&[5, 6, 7], Some(4), false);
        let started = Instant::now();
        let ids = [plain(&[1, 2], 40), stuck, whole].map(|request| runner.add(request).unwrap());
        let ends = run(&mut runner, &ids);
        assert!(started.elapsed() < LIMIT + Duration::from_secs(10), "{:?}", started.elapsed());
        assert_eq!(ends[0], (expected(&[1, 2], 40), Reason::Length), "a bystander");
        assert_eq!((ends[1].0.len(), &ends[1].1), (4, &Reason::Mask(MaskFault::Late { limit: LIMIT })));
        assert_eq!((ends[2].0.len(), &ends[2].1), (20, &Reason::Length), "another one with a mask");
        assert_eq!(stage.interrupted.load(Ordering::Acquire), 1, "it is asked to end");
        assert_eq!(runner.figures().free_blocks, CAPACITY.blocks);
        // An end does not wait for what is left behind.
        let started = Instant::now();
        drop(runner);
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        assert!(stage.dropped.load(Ordering::Acquire) < 2, "it is still at work");
        drop(stage.release);
    }
}

#[test]
fn a_mask_that_fails_ends_its_request_and_no_other() {
    let (mut runner, stage) = (runner(false), Stage::new());
    let requests = [plain(&[1, 2], 40), stage.request(&[5, 6], Some(2), true)];
    let ids = requests.map(|request| runner.add(request).unwrap());
    let ends = run(&mut runner, &ids);
    assert_eq!(ends[0], (expected(&[1, 2], 40), Reason::Length));
    assert_eq!((ends[1].0.len(), &ends[1].1), (2, &Reason::Mask(MaskFault::Died)));
    stage.wait(1);
}

/// Only so many computations are left behind; those that are done, and requests that end in order, do not count.
#[test]
fn what_is_left_behind_is_bounded() {
    let (mut runner, stage) = (runner(true), Stage::new());
    for _ in 0..MASKS_LEFT_MAX / CAPACITY.sequences {
        let stuck = [1, 2, 3, 4].map(|first| runner.add(stage.request(&[first, 9], Some(0), false)).unwrap());
        let started = Instant::now();
        let ends = run(&mut runner, &stuck);
        assert!(ends.iter().all(|(text, reason)| text.is_empty() && matches!(reason, Reason::Mask(_))), "{ends:?}");
        assert!(started.elapsed() < 3 * LIMIT + Duration::from_secs(10), "they are waited for together");
    }
    let refused = runner.add(stage.request(&[1, 2], None, false));
    assert_eq!(refused, Err(Refused::MasksLeft { left: MASKS_LEFT_MAX }));
    // Others go on.
    let id = runner.add(plain(&[1, 2], 9)).unwrap();
    assert_eq!(run(&mut runner, &[id])[0].0, expected(&[1, 2], 9));
    stage.release.send(()).unwrap();
    stage.wait(2);
    // The thread says so after the mask is gone.
    let started = Instant::now();
    let id = loop {
        match runner.add(stage.request(&[1, 2], None, false)) {
            Ok(id) => break id,
            Err(refused) => assert!(started.elapsed() < Duration::from_secs(60), "{refused}"),
        }
    };
    assert_eq!(run(&mut runner, &[id])[0].1, Reason::Length);
    drop(stage.release);
}
