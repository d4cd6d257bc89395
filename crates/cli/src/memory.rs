//! Whether a model fits the machine's memory: asked before it is loaded, since the system would end the program without a
//! word halfway through.

use crate::error::{Error, input};
use crate::output;
use tombolo_gguf::Gguf;
use tombolo_model::{Arith, BLOCK_TOKENS, Capacity, KvGroup, KvType, Program};

/// What the ranks of a model take of the processor's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) weights: u64,
    pub(crate) cache: u64,
}

impl Needs {
    /// Of every rank together.
    pub(crate) fn of(gguf: &Gguf, programs: &[Program], capacity: Capacity, arith: Arith, kv: KvType) -> Self {
        let copies = match arith {
            Arith::Production => 1,
            // Weights are read where the file is mapped.
            Arith::F32 => 0,
        };
        // Weights that are made are held once more.
        let copies = copies + u64::from(gguf.is_made());
        let weights: u64 = programs.iter().map(|p| p.weight_bytes() as u64).sum();
        let tokens = (capacity.blocks * BLOCK_TOKENS) as u64;
        let bytes = |g: &KvGroup| kv.bytes(g.layers * g.values_per_token()) as u64;
        let per_token = |p: &Program| p.groups.iter().map(bytes).sum::<u64>();
        let cache = programs.iter().map(per_token).sum::<u64>().saturating_mul(tokens);
        Self { weights: weights.saturating_mul(copies), cache }
    }

    /// Refuses what does not fit.
    pub(crate) fn check(&self, available: Option<u64>) -> Result<(), Error> {
        let needed = self.weights.saturating_add(self.cache);
        let Some(available) = available.filter(|&available| available < needed) else { return Ok(()) };
        let way = if self.weights < available {
            "a smaller context (-c) would fit"
        } else {
            "the model alone is larger than that"
        };
        Err(input(format!(
            "not enough memory: {} for weights and {} for the KV cache are needed, {} are free: {way}",
            output::size(self.weights),
            output::size(self.cache),
            output::size(available)
        )))
    }
}

/// Bytes that can be had without swapping; `None` where the system does not say.
pub(crate) fn available() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_words_are_understood() {
        assert_eq!(parse("MemTotal:  24 kB\nMemAvailable:   22312 kB\n"), Some(22312 * 1024));
        assert_eq!(parse("MemTotal: 24 kB\n"), None);
        assert_eq!(parse("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_way_out() {
        let needs = Needs { weights: 6 << 30, cache: 4 << 30 };
        assert!(needs.check(Some(10 << 30)).is_ok() && needs.check(None).is_ok());
        let line = |available| match needs.check(Some(available)) {
            Err(Error::Input(line)) => line,
            _ => panic!("it was not refused as it should be"),
        };
        assert!(line(7 << 30).contains("-c"), "{}", line(7 << 30));
        assert!(line(5 << 30).contains("6.00 GiB") && line(5 << 30).contains("alone"), "{}", line(5 << 30));
    }
}
