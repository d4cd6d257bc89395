//! What a terminal shows of work that takes longer than a second.

use crate::interrupt;
use indicatif::{ProgressBar, ProgressStyle};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Work that ends sooner shows nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// For [`tombolo_engine::Engine::set_between_chunks`]: Ctrl-C ends the prompt, and a bar shows how far a long one is.
pub(crate) fn of_prompt() -> impl FnMut(usize, usize) -> ControlFlow<()> + Send {
    let mut started = Instant::now();
    let mut bar: Option<ProgressBar> = None;
    move |done, total| {
        if done == 0 {
            started = Instant::now();
        }
        let is_over = done == total || interrupt::is_pressed();
        if is_over {
            bar.take().inspect(ProgressBar::finish_and_clear);
        } else if started.elapsed() >= PATIENCE {
            bar.get_or_insert_with(|| tokens_bar(total)).set_position(done as u64);
        }
        interrupt::between_chunks(done, total)
    }
}

/// Draws nothing where standard error is no terminal.
fn tokens_bar(total: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("prompt {bar:30} {pos}/{len} tokens, {eta} left");
    let bar = ProgressBar::new(total as u64);
    style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style))
}
