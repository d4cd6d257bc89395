//! Where events of the server go: to standard error, as lines for people or as JSON.

use crate::output;
use tracing::level_filters::LevelFilter;

/// Options of what is told while it runs.
#[derive(clap::Args)]
pub(crate) struct LogArgs {
    /// What is told while it runs: info tells of every request, debug of every step too
    #[arg(long, value_enum, default_value = "warn", value_name = "LEVEL")]
    log_level: Level,
    /// Tell it as JSON, one object a line
    #[arg(long)]
    log_json: bool,
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
