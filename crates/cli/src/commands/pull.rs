//! `tombolo pull`: the GGUF files of a model from a hub, all shards of a split set, checked, and the same call again after
//! whatever broke it goes on where it was.

mod choose;
mod download;
mod hop;
mod hub;
mod part;

use crate::args::maybe_path;
use crate::error::{Error, failure, input};
use crate::output;
use choose::{Set, choose, sets};
use clap::value_parser;
use download::{Download, Pace};
use hub::Hub;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The hub where none is named.
const HUB: &str = "https://huggingface.co";

/// Options of `pull`.
#[derive(clap::Args)]
pub(crate) struct PullArgs {
    /// Repository, and which of its quantizations: OWNER/NAME or OWNER/NAME:Q4_K_M [default of the second: Q4_K_M, or the
    /// only one there is]
    #[arg(value_name = "REPO[:QUANT]")]
    repo: String,
    /// Folder that the files go to
    #[arg(long, default_value = ".", value_name = "DIR")]
    dir: PathBuf,
    /// Branch, tag or commit
    #[arg(long, default_value = "main", value_name = "NAME")]
    revision: String,
    /// Only list what there is
    #[arg(long)]
    list: bool,
    /// The hub: any with this one's API
    #[arg(long, default_value = HUB, value_name = "URL", env = "HF_ENDPOINT")]
    endpoint: String,
    /// Token for repositories that ask for one
    #[arg(long, value_name = "TOKEN", env = "HF_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Certificates to trust, as PEM [default: the system's]
    #[arg(long, value_name = "FILE", env = "SSL_CERT_FILE", value_parser = maybe_path())]
    ca_file: Option<PathBuf>,
    /// Times to go on after a broken connection that brought nothing
    #[arg(long, default_value_t = 5, value_name = "N")]
    retries: u32,
    /// Seconds without a byte after which a connection counts as broken
    #[arg(long, default_value_t = 60, value_name = "S", value_parser = value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &PullArgs) -> Result<ExitCode, Error> {
    let started = Instant::now();
    let (repo, quant) = match args.repo.split_once(':') {
        Some((repo, quant)) => (repo, Some(quant)),
        None => (args.repo.as_str(), None),
    };
    if !is_repo(repo) || quant == Some("") {
        return Err(input(format!("'{}': OWNER/NAME or OWNER/NAME:QUANT is needed", args.repo)));
    }
    if !args.revision.split('/').all(is_name) {
        return Err(input(format!("--revision {}: a branch, tag or commit is needed", args.revision)));
    }
    let pause = Duration::from_secs(args.timeout);
    // A variable that is there and empty says nothing.
    let token = args.token.as_deref().filter(|token| !token.is_empty());
    let endpoint = if args.endpoint.is_empty() { HUB } else { &args.endpoint };
    let hub = Hub::new(endpoint, token, args.ca_file.as_deref(), pause)?;
    let sets = sets(hub.files(repo, &args.revision)?);
    if args.list {
        return list(args, &sets);
    }
    let set = choose(&sets, quant).map_err(|why| input(format!("{repo}: {why}")))?;
    make_folder(&args.dir)?;
    let pace = Pace { retries: args.retries, bars: !args.json };
    let mut downloads = Vec::new();
    for file in &set.files {
        downloads.push(Download::open(&args.dir, file)?);
    }
    check_space(&args.dir, downloads.iter().map(Download::missing).sum())?;
    let mut done = Vec::new();
    for download in downloads {
        let url = hub.file_url(repo, &args.revision, &download.file.path);
        done.push(download.finish(&hub, &url, pace)?);
    }
    let first = done.first().map(|saved| saved.path.display().to_string()).unwrap_or_default();
    if args.json {
        let file = |saved: &download::Saved| {
            json!({"path": saved.path, "bytes": saved.bytes, "sha256": saved.sha256, "checked": saved.is_checked,
                "downloaded": saved.downloaded})
        };
        let files: Vec<_> = done.iter().map(file).collect();
        let all = json!({"repo": repo, "revision": args.revision, "quant": set.label, "model": first, "files": files,
            "seconds": started.elapsed().as_secs_f64()});
        output_line(&all.to_string())?;
    } else {
        output_line(&first)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn output_line(line: &str) -> Result<(), Error> {
    use std::io::Write;
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

fn list(args: &PullArgs, sets: &[Set]) -> Result<ExitCode, Error> {
    if args.json {
        let set = |set: &Set| {
            let files: Vec<_> = set.files.iter().map(|file| json!({"path": file.path, "bytes": file.bytes})).collect();
            json!({"quant": set.label, "bytes": set.bytes(), "is_whole": set.is_whole(), "files": files})
        };
        output_line(&serde_json::Value::from(sets.iter().map(set).collect::<Vec<_>>()).to_string())?;
    } else {
        for set in sets {
            let files = if set.files.len() == 1 { String::new() } else { format!("  {} files", set.files.len()) };
            let name = output::one_line(&set.name);
            output_line(&format!("{:<12} {:>12}  {name}{files}", set.label, output::bytes(set.bytes())))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `OWNER/NAME`.
fn is_repo(repo: &str) -> bool {
    repo.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name))
}

/// A part of a path of the hub that cannot mean another place.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.len() <= 255 && name.bytes().all(is_plain) && name.bytes().any(|byte| byte != b'.')
}

/// Before anything comes: a folder that nothing can be written to.
fn make_folder(dir: &Path) -> Result<(), Error> {
    use rustix::fs::{Access, access};
    let made = std::fs::create_dir_all(dir).map_err(|error| match dir.metadata() {
        Ok(data) if !data.is_dir() => "it is a file, and a folder is needed".to_string(),
        _ => format!("it cannot be made: {error}"),
    });
    let open = made.and_then(|()| {
        let refused = |error| format!("nothing can be written there: {}", std::io::Error::from(error));
        access(dir, Access::WRITE_OK | Access::EXEC_OK).map_err(refused)
    });
    open.map_err(|why| failure(format!("--dir {}: {why}", dir.display())))
}

/// Before the first byte: a disk that fills up after an hour helps nobody.
fn check_space(dir: &Path, needed: u64) -> Result<(), Error> {
    // Where the system does not say, writing will.
    let Ok(stat) = rustix::fs::statvfs(dir) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    // File systems that are no disks have none, and say by writing what they think of it.
    if needed <= free || stat.f_blocks == 0 {
        return Ok(());
    }
    let (needed, free) = (output::size(needed), output::size(free));
    Err(failure(format!("--dir {}: {needed} are needed and {free} are free", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_two_plain_names() {
        assert!(is_repo("some-owner/Some_Model-1.5B-GGUF"));
        for wrong in ["name", "a/b/c", "../b", "a/..", "a/", "/b", "a/b?c", "a b/c", "a/b%2f"] {
            assert!(!is_repo(wrong), "{wrong}");
        }
    }
}
