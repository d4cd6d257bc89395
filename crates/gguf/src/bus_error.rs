//! What happens when a mapped file is cut while it is in use: the system then has no bytes to give, and says so with a
//! signal (SIGBUS) at whatever instruction reads them. It cannot be undone, only explained: one line, exit code 74.
//!
//! Every map registers here; the handler is set only by a program that asks for it. No other crash is touched.
#![allow(unsafe_code)]

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// What the process ends with: input/output error, of the BSD list of exit codes.
pub const EXIT_CODE: i32 = 74;

/// A map's addresses, and the line for when they fail. Lives on when the map is gone, with no addresses: the handler
/// may be reading the list at any moment. That is about a hundred bytes for a file.
pub(crate) struct Watched {
    start: AtomicUsize,
    end: AtomicUsize,
    line: Box<[u8]>,
    next: AtomicPtr<Watched>,
}

static LIST: AtomicPtr<Watched> = AtomicPtr::new(std::ptr::null_mut());
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
static WRITING: AtomicBool = AtomicBool::new(false);
static FORM: OnceLock<fn(&str) -> String> = OnceLock::new();

/// Registers a map of the file at `path`.
pub(crate) fn watch(map: &[u8], path: &Path) -> &'static Watched {
    let path = path.display().to_string();
    let what = format!(
        "{}: bytes that were there at the start cannot be read any more; the file was cut while it was in use, or its disk \
         failed",
        path.escape_debug()
    );
    let line = FORM.get().map_or_else(|| format!("error: {what}"), |form| form(&what)) + "\n";
    let start = map.as_ptr() as usize;
    let watched: &'static Watched = Box::leak(Box::new(Watched {
        start: AtomicUsize::new(start),
        end: AtomicUsize::new(start + map.len()),
        line: line.into_bytes().into(),
        next: AtomicPtr::new(std::ptr::null_mut()),
    }));
    let entry = std::ptr::from_ref(watched).cast_mut();
    let mut head = LIST.load(Ordering::Relaxed);
    loop {
        watched.next.store(head, Ordering::Relaxed);
        // The release makes the entry whole for whoever finds it.
        match LIST.compare_exchange_weak(head, entry, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return watched,
            Err(now) => head = now,
        }
    }
}

impl Watched {
    /// The map is about to go.
    pub(crate) fn forget(&self) {
        self.end.store(0, Ordering::Release);
        self.start.store(0, Ordering::Release);
    }
}

/// How the line is written that says that a file was cut, of files that are opened from now on; without this it begins
/// with `error: `. Only the first call counts.
pub fn word_cut_files(form: fn(&str) -> String) {
    let _ = FORM.set(form);
}

/// From now on, reading bytes of a model's file that was cut ends the process with one line on standard error and exit
/// code [`EXIT_CODE`]. For a program, at its start; a library must not decide this.
///
/// # Errors
/// What the system says where it takes no handler.
pub fn exit_when_a_file_is_cut() -> std::io::Result<()> {
    // SAFETY: all zeros is a valid `sigaction`: no flags, an empty mask, the default action.
    let (mut action, mut previous): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus_error as *const () as usize;
    // On the stack that Rust keeps for signals: the thread's own may be what is wrong.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both structures are whole and ours; the handler keeps to what a signal handler may do.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) };
    if asked != 0 {
        return Err(std::io::Error::last_os_error());
    }
    if PREVIOUS.set(previous).is_err() {
        return Ok(());
    }
    // SAFETY: as above.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Runs inside the signal: loads, writes and exits only, nothing that allocates or locks.
extern "C" fn on_bus_error(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the system passes a valid structure to a handler with SA_SIGINFO; of SIGBUS it has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let mut entry = LIST.load(Ordering::Acquire);
    // SAFETY: entries are whole before they are linked (release, acquire) and are never freed.
    while let Some(watched) = unsafe { entry.as_ref() } {
        if (watched.start.load(Ordering::Acquire)..watched.end.load(Ordering::Acquire)).contains(&address) {
            exit(&watched.line);
        }
        entry = watched.next.load(Ordering::Relaxed);
    }
    // Not one of ours: on return the instruction fails again, and whoever was in charge before us is told.
    if let Some(previous) = PREVIOUS.get() {
        // SAFETY: the structure came from the system.
        unsafe { libc::sigaction(libc::SIGBUS, previous, std::ptr::null_mut()) };
    }
}

/// Writes the line once, whichever thread is first, and ends the process.
fn exit(line: &[u8]) -> ! {
    while WRITING.swap(true, Ordering::SeqCst) {
        // Another thread is about to end the process.
        // SAFETY: waits for a signal; nothing else.
        unsafe { libc::pause() };
    }
    // SAFETY: the line is valid for its length; both calls are allowed in a signal handler.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        libc::_exit(EXIT_CODE)
    }
}
