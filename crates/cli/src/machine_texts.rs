//! The texts that `--machine` names: files, directories and standard input.

use crate::error::{Error, input};
use std::io::Read;
use std::path::{Path, PathBuf};
use tombolo_topology::Source;
use tombolo_topology::limits::{SOURCE_BYTES_MAX, SOURCES_MAX};

/// Endings of files that are read from a directory.
const TEXTS: [&str; 6] = ["txt", "csv", "json", "xml", "log", "md"];

/// Reads all of them.
pub(crate) fn sources(paths: &[PathBuf]) -> Result<Vec<Source>, Error> {
    let mut sources = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let text = read("standard input", std::io::stdin().lock())?;
            sources.push(Source { name: "standard input".into(), text });
        } else if path.is_dir() {
            for file in directory(path)? {
                sources.push(file_source(&file)?);
            }
        } else {
            sources.push(file_source(path)?);
        }
    }
    Ok(sources)
}

fn file_source(path: &Path) -> Result<Source, Error> {
    let shown = path.display().to_string();
    let file = std::fs::File::open(path).map_err(|error| Error::Input(format!("{shown}: {error}")))?;
    let name = path.file_name().and_then(|n| n.to_str()).map_or(shown.clone(), String::from);
    Ok(Source { name, text: read(&shown, file)? })
}

/// The texts of a directory, by name.
fn directory(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let shown = path.display();
    let entries = std::fs::read_dir(path).map_err(|error| Error::Input(format!("{shown}: {error}")))?;
    let ending = |p: &PathBuf| p.extension().and_then(|e| e.to_str()).is_some_and(|e| TEXTS.contains(&e));
    let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| p.is_file() && ending(p)).collect();
    files.sort();
    if files.is_empty() || files.len() > SOURCES_MAX {
        let what = format!("{shown}: {} files ending in .{}", files.len(), TEXTS.join(", ."));
        return Err(Error::Input(format!("{what}; between 1 and {SOURCES_MAX} are needed")));
    }
    Ok(files)
}

/// A text of limited length. PowerShell writes UTF-16, which is taken too.
fn read(name: &str, from: impl Read) -> Result<String, Error> {
    let mut bytes = Vec::new();
    from.take(SOURCE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| input(format!("{name}: {error}")))?;
    if bytes.len() > SOURCE_BYTES_MAX {
        return Err(Error::Input(format!(
            "{name}: more than {} MiB; that is no listing of GPUs",
            SOURCE_BYTES_MAX >> 20
        )));
    }
    let wide = |order: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes[2..].as_chunks::<2>().0.iter().map(|pair| order(*pair)).collect();
        String::from_utf16_lossy(&units)
    };
    Ok(match bytes[..] {
        [0xff, 0xfe, ..] => wide(u16::from_le_bytes),
        [0xfe, 0xff, ..] => wide(u16::from_be_bytes),
        _ => String::from_utf8_lossy(&bytes).into_owned(),
    })
}
