//! What goes wrong is an error with a name, never a hang.

mod common;

use common::{How, Model, data, step};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tombolo_cpu::Options;
use tombolo_gguf::Gguf;
use tombolo_model::{Arith, BackendError, Capacity, Config, StepError};

fn tiny() -> Arc<Gguf> {
    Arc::new(Gguf::open(&data("tiny-llama-q8_0.gguf")).unwrap())
}

#[test]
fn a_bad_step_is_refused_and_the_rank_goes_on() {
    let mut model = Model::of(tiny(), How::new(1, Arith::Production));
    let good = [step(0, &[1, 2, 3], true)];
    let want = model.run(&good);
    let rank = &mut model.ranks[0];
    let error = rank.submit(Arc::new(step(0, &[99999], true))).unwrap_err();
    assert!(matches!(error, BackendError::Step(StepError::Token { token: 99999, .. })), "{error}");
    let mut far = step(0, &[1], true);
    far.sequences[0].tables[0][0] = u32::MAX;
    assert!(matches!(rank.submit(Arc::new(far)), Err(BackendError::Step(StepError::Block { .. }))));
    assert!(rank.collect().is_err(), "nothing was submitted");
    assert_eq!(model.run(&good), want);
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let gguf = tiny();
    let config = Config::from_gguf(&gguf).unwrap();
    let options = Options { threads: 2, arith: Arith::F32, kv: None, deadline: Duration::from_millis(200) };
    let mut ranks = tombolo_cpu::load(gguf, &config, 2, Capacity::new(8, 8, 256), &options).unwrap();
    let step = Arc::new(step(0, &[1, 2], true));
    ranks[0].submit(Arc::clone(&step)).unwrap();
    let start = Instant::now();
    let error = ranks[0].collect().unwrap_err();
    assert!(matches!(error, BackendError::RankSilent { rank: 0, silent: 1, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20));
    // And the rank is over.
    assert!(ranks[0].submit(step).unwrap_err().to_string().contains("stopped after an earlier error"));
}

#[test]
fn a_rank_that_is_dropped_wakes_the_others_before_the_deadline() {
    let mut model = Model::of(tiny(), How::new(2, Arith::Production));
    let gone = model.ranks.pop();
    let step = Arc::new(step(0, &[1, 2], true));
    model.ranks[0].submit(step).unwrap();
    let start = Instant::now();
    let error = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| model.ranks[0].collect().unwrap_err());
        std::thread::sleep(Duration::from_millis(20));
        drop(gone);
        waiting.join().unwrap()
    });
    assert!(matches!(error, BackendError::RankSilent { rank: 0, silent: 1, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(30), "the deadline of 60 s was sat out");
}

#[test]
fn what_cannot_be_loaded_is_refused() {
    let gguf = tiny();
    let config = Config::from_gguf(&gguf).unwrap();
    let load = |tp, capacity| tombolo_cpu::load(Arc::clone(&gguf), &config, tp, capacity, &Options::default());
    assert!(load(3, Capacity::new(8, 1, 64)).is_err(), "8 heads do not split in 3");
    assert!(load(0, Capacity::new(8, 1, 64)).is_err());
    let huge = Capacity { rows: 8, sequences: 1, logits: 1, context: 64, blocks: usize::MAX / 1_000_000 };
    let error = load(1, huge).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.starts_with("no memory for KV group 'kv'"), "{error}");
}
