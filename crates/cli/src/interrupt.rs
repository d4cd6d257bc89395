//! Ctrl-C: ends an answer cleanly while one is being written, and the program otherwise.

use crate::error::{Error, failure};
use crate::output;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU8, Ordering};

/// What Ctrl-C means now.
static STATE: AtomicU8 = AtomicU8::new(EXITS);
/// It ends the program.
const EXITS: u8 = 0;
/// It ends the answer.
const WRITING: u8 = 1;
/// It was pressed during the answer.
const PRESSED: u8 = 2;

/// Exit code of a program that an interrupt ended.
pub(crate) const EXIT_CODE: u8 = 130;

/// Sets the handler, once.
pub(crate) fn install() -> Result<(), Error> {
    ctrlc::set_handler(|| {
        // The first press asks the answer to end; a second one does not wait for it.
        if STATE.compare_exchange(WRITING, PRESSED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            output::say("");
            std::process::exit(i32::from(EXIT_CODE));
        }
    })
    .map_err(|e| failure(format!("cannot listen for Ctrl-C: {e}")))
}

/// Whether Ctrl-C was pressed during the answer that is being written.
pub(crate) fn is_pressed() -> bool {
    STATE.load(Ordering::SeqCst) == PRESSED
}

/// For [`tombolo_engine::Engine::set_between_chunks`]: breaks off once Ctrl-C was pressed.
pub(crate) fn between_chunks(_done: usize, _total: usize) -> ControlFlow<()> {
    if is_pressed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// While this lives, Ctrl-C ends the answer instead of the program.
pub(crate) struct Answer(());

impl Answer {
    pub(crate) fn begin() -> Self {
        STATE.store(WRITING, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        STATE.store(EXITS, Ordering::SeqCst);
    }
}
