//! What a terminal shows of work that takes longer than a second.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Work that ends sooner shows nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// How far a long prompt is.
pub(crate) struct OfPrompt {
    started: Instant,
    bar: Option<ProgressBar>,
}

impl OfPrompt {
    pub(crate) fn begin() -> Self {
        Self { started: Instant::now(), bar: None }
    }

    /// So many of its tokens are run.
    pub(crate) fn show(&mut self, done: usize, total: usize) {
        if done < total && self.started.elapsed() >= PATIENCE {
            self.bar.get_or_insert_with(|| tokens_bar(total)).set_position(done as u64);
        } else if done == total {
            self.end();
        }
    }

    /// It is over, or given up.
    pub(crate) fn end(&mut self) {
        self.bar.take().inspect(ProgressBar::finish_and_clear);
    }
}

/// Draws nothing where standard error is no terminal.
fn tokens_bar(total: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("prompt {bar:30} {pos}/{len} tokens, {eta} left");
    let bar = ProgressBar::new(total as u64);
    style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style))
}
