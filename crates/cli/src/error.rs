//! Errors as people see them: one line that says what, where and what to do, and an exit code.
//!
//! 0: done. 1: it failed. 2: bad usage or a bad input file: trying again without a change is no use.

use crate::limits::LINE_CHARS_MAX;
use crate::output;
use std::io::Write;
use std::process::ExitCode;

/// Why a command ended without its result.
#[derive(Debug)]
pub(crate) enum Error {
    /// The command line or an input file is wrong.
    Input(String),
    /// Everything was asked for rightly, and it failed.
    Failure(String),
    /// Whoever read our output has closed it: nothing to complain about.
    ReaderGone,
}

impl Error {
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Error::Input(_) => ExitCode::from(2),
            Error::Failure(_) => ExitCode::from(1),
            Error::ReaderGone => ExitCode::SUCCESS,
        }
    }

    /// Prints the one line.
    pub(crate) fn print(&self) {
        match self {
            Error::Input(line) | Error::Failure(line) => print_line(line),
            Error::ReaderGone => {}
        }
    }
}

/// `Input` from anything that can say what it is.
pub(crate) fn input(error: impl std::fmt::Display) -> Error {
    Error::Input(error.to_string())
}

/// `Failure` from anything that can say what it is.
pub(crate) fn failure(error: impl std::fmt::Display) -> Error {
    Error::Failure(error.to_string())
}

impl From<std::io::Error> for Error {
    /// For output; input files are opened where their names are known.
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Error::ReaderGone,
            _ => Error::Failure(format!("writing the output: {error}")),
        }
    }
}

fn print_line(line: &str) {
    output::complain(&output::shortened(&output::one_line(line), LINE_CHARS_MAX));
}

/// What clap has to say: help as it is, and an error as one line, which is the last.
pub(crate) fn usage(wrong: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    if matches!(wrong.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = wrong.print();
        return ExitCode::SUCCESS;
    }
    let is_nothing = [ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, ErrorKind::MissingSubcommand];
    if is_nothing.contains(&wrong.kind()) {
        // Options from the environment make the second of the first, which prints no help.
        let _ = match wrong.kind() {
            ErrorKind::MissingSubcommand => writeln!(std::io::stderr(), "{}", crate::command_line().render_help()),
            _ => wrong.print(),
        };
        print_line("no command given; --help shows what there is");
        return ExitCode::from(2);
    }
    print_line(&format!("{}; --help shows what there is", first_line(wrong)));
    ExitCode::from(2)
}

/// What clap complains of, without its advice.
pub(crate) fn first_line(wrong: &clap::Error) -> String {
    let text = wrong.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A panic is a fault of ours. It still ends in one line; a rank's is reported by the engine instead.
pub(crate) fn one_line_panics() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        if thread.name() != Some("main") {
            return;
        }
        let what = info.payload().downcast_ref::<&str>().map(|s| (*s).to_string());
        let what = what.or_else(|| info.payload().downcast_ref::<String>().cloned()).unwrap_or_default();
        let at = info.location().map(|l| format!("{}:{}", l.file(), l.line())).unwrap_or_default();
        print_line(&format!("internal error at {at}: {what}"));
    }));
}
