//! One thread per rank. A rank that fails, panics or goes silent becomes an error that names it.

use crate::EngineError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tombolo_model::{Backend, BackendError, Step, StepOutput};

/// Longest that one step may take before the engine gives up on a rank. Backends have their own, shorter deadlines for
/// what they wait for; this one ends what they missed.
const STEP_DEADLINE: Duration = Duration::from_secs(600);

enum Command {
    Submit(Arc<Step>),
    Collect,
}

enum Failure {
    Backend(BackendError),
    Panic(String),
}

struct Worker {
    commands: Option<Sender<Command>>,
    answers: Receiver<Result<StepOutput, Failure>>,
    thread: Option<JoinHandle<()>>,
}

/// All ranks of a model.
pub(crate) struct Workers {
    ranks: Vec<Worker>,
    silent: bool,
}

impl Workers {
    pub(crate) fn start(backends: Vec<Box<dyn Backend>>) -> Self {
        let start = |(rank, backend): (usize, Box<dyn Backend>)| {
            let (commands, inbox) = channel();
            let (outbox, answers) = channel();
            // Without a thread both channels close, which shows when the first answer is collected.
            let thread = std::thread::Builder::new()
                .name(format!("rank {rank}"))
                .spawn(move || serve(backend, &inbox, &outbox))
                .ok();
            Worker { commands: Some(commands), answers, thread }
        };
        Self { ranks: backends.into_iter().enumerate().map(start).collect(), silent: false }
    }

    /// Starts a step on every rank.
    pub(crate) fn submit(&mut self, step: &Arc<Step>) {
        for worker in &self.ranks {
            // A closed channel shows when the answer is collected.
            worker.send(Command::Submit(step.clone()));
        }
    }

    /// The oldest uncollected step's answer: tokens, and the logits of all vocabulary shards side by side.
    pub(crate) fn collect(&mut self) -> Result<StepOutput, EngineError> {
        for worker in &self.ranks {
            worker.send(Command::Collect);
        }
        let started = Instant::now();
        let answer = |worker: &Worker| worker.answers.recv_timeout(STEP_DEADLINE.saturating_sub(started.elapsed()));
        let answers: Vec<_> = self.ranks.iter().map(answer).collect();
        let mut outputs = Vec::with_capacity(answers.len());
        let mut failure = None;
        for (rank, answer) in answers.into_iter().enumerate() {
            let error = match answer {
                Ok(Ok(output)) => {
                    outputs.push(output);
                    continue;
                }
                Ok(Err(Failure::Backend(error))) => EngineError::Backend { rank, error },
                Ok(Err(Failure::Panic(reason))) => EngineError::RankDied { rank, reason },
                Err(RecvTimeoutError::Disconnected) => {
                    EngineError::RankDied { rank, reason: "its thread ended or could not be started".into() }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.silent = true;
                    EngineError::RankSilent { rank, seconds: STEP_DEADLINE.as_secs() }
                }
            };
            // The first rank that died explains more than those that waited for it.
            if failure.as_ref().is_none_or(only_waited) {
                failure = Some(error);
            }
        }
        match failure {
            Some(error) => Err(error),
            None => join(outputs),
        }
    }
}

fn only_waited(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Backend { error: BackendError::RankSilent { .. }, .. } | EngineError::RankSilent { .. }
    )
}

impl Worker {
    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.ranks {
            worker.commands = None;
        }
        for worker in &mut self.ranks {
            // A silent rank's thread may never end: the process does not wait for it.
            if let Some(thread) = worker.thread.take().filter(|_| !self.silent) {
                let _ = thread.join();
            }
        }
    }
}

fn serve(mut backend: Box<dyn Backend>, inbox: &Receiver<Command>, outbox: &Sender<Result<StepOutput, Failure>>) {
    let mut failed = None;
    for command in inbox {
        match command {
            Command::Submit(step) if failed.is_none() => {
                failed = guarded(|| backend.submit(step)).err();
            }
            Command::Submit(_) => {}
            Command::Collect => {
                let answer = match failed.take() {
                    Some(failure) => Err(failure),
                    None => guarded(|| backend.collect()),
                };
                let over = answer.is_err();
                if outbox.send(answer).is_err() || over {
                    return;
                }
            }
        }
    }
}

fn guarded<T>(f: impl FnOnce() -> Result<T, BackendError>) -> Result<T, Failure> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(Failure::Backend),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Err(Failure::Panic(format!("panicked: {}", text.unwrap_or_default())))
        }
    }
}

/// Joins the ranks' outputs. The tokens must agree: every rank drew from the same bits by the same law.
fn join(outputs: Vec<StepOutput>) -> Result<StepOutput, EngineError> {
    let tokens = outputs[0].tokens.clone();
    for (rank, output) in outputs.iter().enumerate() {
        let differs = output.tokens.iter().zip(&tokens).find(|(a, b)| a != b);
        if let Some((&token, &expected)) = differs {
            return Err(EngineError::RanksDisagree { rank, token, expected });
        }
    }
    let rows = tokens.len();
    let mut logits = Vec::with_capacity(outputs.iter().map(|o| o.logits.len()).sum());
    if rows > 0 {
        for row in 0..rows {
            for output in &outputs {
                let width = output.logits.len() / rows;
                logits.extend_from_slice(&output.logits[row * width..(row + 1) * width]);
            }
        }
    }
    Ok(StepOutput { tokens, logits })
}
