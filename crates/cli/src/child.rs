//! A child process with a deadline: for what can hang in a driver for good.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks at whether it has ended.
const PAUSE: Duration = Duration::from_millis(20);

/// How it ended.
pub(crate) enum Ended {
    /// By itself.
    Itself {
        status: ExitStatus,
        /// What it wrote to standard output.
        out: String,
        /// And to standard error.
        complaint: String,
    },
    /// It was told to at the deadline; one that hangs in a driver may not.
    Killed(Child),
}

/// Runs a command and reads what it writes.
pub(crate) fn run(command: &mut Command, deadline: Duration) -> std::io::Result<Ended> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // Read as it comes: a child whose pipe is full would wait for a reader until its deadline.
    let (out, complaint) = (read_all(child.stdout.take()), read_all(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if start.elapsed() > deadline => {
                let _ = child.kill();
                return Ok(Ended::Killed(child));
            }
            None => std::thread::sleep(PAUSE),
        }
    };
    let text = |read: JoinHandle<String>| read.join().unwrap_or_default();
    Ok(Ended::Itself { status, out: text(out), complaint: text(complaint) })
}

fn read_all(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
