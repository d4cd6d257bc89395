//! Finds or fetches the CUDA compiler, and runs it.

use super::FLAGS;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release that kernels are built with: later ones emit PTX that the drivers we support refuse.
const RELEASE: &str = "13.0";
/// The compiler from the Python package index. Pinned one and all: an unpinned companion of another release is taken
/// otherwise, and does not fit.
const WHEELS: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    // For <nv/target>, which cuda_fp16.h includes; no kernel includes it by itself.
    "nvidia-cuda-cccl==13.0.85",
];
/// Written last: without it the wheels are not all there.
const COMPLETE: &str = "complete";

/// A compiler that answered.
pub(super) struct Nvcc {
    pub(super) path: PathBuf,
    /// As `13.0.88`.
    pub(super) version: String,
}

impl Nvcc {
    /// `$NVCC`, whatever its release; else one of the right release on the path or in the usual place; else fetched.
    pub(super) fn find(root: &Path) -> Result<Self> {
        if let Some(path) = std::env::var_os("NVCC") {
            let path = PathBuf::from(path);
            return Self::at(&path).with_context(|| format!("$NVCC is {}", path.display()));
        }
        let on_path = std::env::var_os("PATH")
            .map(|paths| std::env::split_paths(&paths).map(|d| d.join("nvcc")).collect::<Vec<_>>())
            .unwrap_or_default();
        for path in on_path.into_iter().chain([PathBuf::from("/usr/local/cuda/bin/nvcc")]).filter(|p| p.is_file()) {
            match Self::at(&path) {
                Ok(nvcc) if nvcc.version.starts_with(&format!("{RELEASE}.")) => return Ok(nvcc),
                Ok(nvcc) => println!("passing over {}: release {}, not {RELEASE}", path.display(), nvcc.version),
                Err(error) => println!("passing over {}: {error:#}", path.display()),
            }
        }
        fetch(root)
    }

    fn at(path: &Path) -> Result<Self> {
        let out =
            Command::new(path).arg("--version").output().with_context(|| format!("running {}", path.display()))?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        match version(&text) {
            Some(version) if out.status.success() => Ok(Self { path: path.to_path_buf(), version }),
            _ => bail!("{} did not say which release it is", path.display()),
        }
    }

    /// Compiles one file for all targets; what the compiler printed.
    pub(super) fn compile(&self, include: &Path, source: &Path, out: &Path, targets: &[String]) -> Result<String> {
        let mut command = Command::new(&self.path);
        command.args(FLAGS).arg("-I").arg(include);
        for target in targets {
            let arch = target.trim_start_matches("sm_").trim_start_matches("compute_");
            command.arg(format!("-gencode=arch=compute_{arch},code={target}"));
        }
        let output = command.arg(source).arg("-o").arg(out).output().context("running nvcc")?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let said: Vec<&str> =
                text.lines().filter(|l| !l.starts_with("ptxas info") && !l.starts_with("    ")).collect();
            bail!("{} does not compile:\n{}", source.display(), said.join("\n"));
        }
        Ok(text)
    }
}

/// `13.0.88` out of `Cuda compilation tools, release 13.0, V13.0.88`.
fn version(text: &str) -> Option<String> {
    let rest = text.split(", V").nth(1)?;
    let version: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    (!version.is_empty()).then_some(version)
}

/// Installs the compiler's wheels into a virtual environment under `target/`, once.
fn fetch(root: &Path) -> Result<Nvcc> {
    let home = root.join("target").join(format!("nvcc-{RELEASE}"));
    if let Some(nvcc) = installed(&home) {
        return Ok(nvcc);
    }
    println!("no nvcc {RELEASE} on this machine: fetching it from the Python package index into {}", home.display());
    let step = |command: &mut Command| -> Result<()> {
        let status = command.status().with_context(|| format!("running {:?}", command.get_program()))?;
        if !status.success() {
            bail!("{:?} failed; install CUDA {RELEASE}'s nvcc and set NVCC to it", command.get_program());
        }
        Ok(())
    };
    step(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    let pip = home.join("bin/pip");
    step(Command::new(pip).args(["install", "--quiet", "--no-deps", "--disable-pip-version-check"]).args(WHEELS))?;
    std::fs::write(home.join(COMPLETE), WHEELS.join("\n"))?;
    installed(&home).with_context(|| format!("the wheels brought no nvcc into {}", home.display()))
}

fn installed(home: &Path) -> Option<Nvcc> {
    std::fs::read_to_string(home.join(COMPLETE)).ok().filter(|wheels| *wheels == WHEELS.join("\n"))?;
    let libs = std::fs::read_dir(home.join("lib")).ok()?;
    libs.flatten()
        .map(|python| python.path().join("site-packages/nvidia/cu13/bin/nvcc"))
        .find_map(|path| if path.is_file() { Nvcc::at(&path).ok() } else { None })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_is_read() {
        let text = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\nBuild x";
        assert_eq!(super::version(text).as_deref(), Some("13.0.88"));
        assert_eq!(super::version("gcc 12"), None);
    }
}
