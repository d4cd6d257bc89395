//! Where events of the server go, and what else is said on standard error: as lines for people or as JSON.

use crate::output;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::level_filters::LevelFilter;

/// Options of what is told while it runs.
#[derive(clap::Args)]
pub(crate) struct LogArgs {
    /// What is told while it runs: info tells of every request, debug of every step too
    #[arg(long, value_enum, default_value = "warn", value_name = "LEVEL")]
    log_level: Level,
    /// Tell it, and all else on standard error, as JSON, one object a line
    #[arg(long)]
    pub(crate) log_json: bool,
}

/// Whether standard error is for machines.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on every line on standard error is a JSON object.
pub(crate) fn as_json() {
    IS_JSON.store(true, Ordering::Relaxed);
    tombolo_gguf::word_cut_files(|what| json_line("ERROR", what));
}

/// Whether that is so.
pub(crate) fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Whether a command line asks for it, however wrong the rest of it is.
pub(crate) fn is_asked_for(args: &[OsString]) -> bool {
    let mut before = args.iter().skip(1).take_while(|arg| *arg != "--");
    // Options before the command, one of which has a value.
    while let Some(arg) = before.next() {
        if arg == "--config" {
            before.next();
        } else if !arg.as_encoded_bytes().starts_with(b"-") {
            return arg == "serve" && before.any(|arg| arg == "--log-json");
        }
    }
    false
}

/// A line in the fields of the events beside it.
pub(crate) fn json_line(level: &str, message: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = output::iso_time(now.as_secs());
    let time = format!("{}.{:06}Z", time.trim_end_matches('Z'), now.subsec_micros());
    serde_json::json!({"timestamp": time, "level": level, "message": message}).to_string()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

impl LogArgs {
    /// From now on. Only the first call of a process counts.
    pub(crate) fn start(&self) {
        let level = match self.log_level {
            Level::Off => LevelFilter::OFF,
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
        };
        let lines = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false);
        // A second call finds the first one's in place.
        if self.log_json {
            let _ = lines.json().flatten_event(true).try_init();
        } else {
            let _ = lines.with_ansi(output::stderr_has_colour()).try_init();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_asked_for_by_the_server_only() {
        let asks = |line: &str| is_asked_for(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(asks("tombolo serve --prot 1 --log-json"));
        assert!(asks("tombolo --config a.toml serve --log-json x"));
        for other in ["tombolo serve", "tombolo serve -- --log-json", "tombolo bench serve --log-json", "tombolo"] {
            assert!(!asks(other), "{other}");
        }
        assert!(!asks("tombolo run -p --log-json") && !asks("tombolo --config serve run -p --log-json"));
    }
}
