//! Random weights of every type, quick to make: random bytes with sane scales stamped in, or entries of a table of
//! encoded values. Their spread gives a matrix about unit gain, so activations and logits stay finite at any depth.

use anyhow::{Result, bail};
use std::io::Write;
use tombolo_gguf::{TensorType, Writer, quant};

/// Bytes made at a time, about.
const CHUNK: u64 = 1 << 20;
/// Encoded values to draw from, for types without blocks; a power of two.
const TABLE: usize = 1 << 14;

/// Writes a tensor's data: of one dimension, norm weights around 1; of more, a matrix.
pub(super) fn write<W: Write>(
    writer: &mut Writer<W>,
    name: &str,
    dims: &[u64],
    ty: TensorType,
    seed: u64,
) -> Result<()> {
    let mut random = Random::of(seed, name);
    if dims.len() == 1 {
        let values: Vec<f32> = (0..dims[0]).map(|_| 0.75 + 0.5 * random.unit()).collect();
        let mut bytes = Vec::new();
        quant::encode(ty, &values, &mut bytes)?;
        writer.data(&bytes)?;
        return Ok(());
    }
    let spread = 1.0 / (dims[0] as f32).sqrt();
    let size = ty.block_bytes() as u64;
    let mut left = dims.iter().product::<u64>() / ty.block_len() as u64;
    let per_chunk = (CHUNK / size).max(1);
    let mut chunk = vec![0; (per_chunk * size) as usize];
    let maker = Maker::new(ty, spread, &mut random)?;
    while left > 0 {
        let blocks = left.min(per_chunk);
        let bytes = &mut chunk[..(blocks * size) as usize];
        maker.fill(bytes, &mut random);
        writer.data(bytes)?;
        left -= blocks;
    }
    Ok(())
}

/// How blocks of a type are made.
enum Maker {
    /// Random bytes, with these halves stamped in at these places.
    Stamped { size: usize, halves: Vec<(usize, [u8; 2])> },
    /// Entries of `size` bytes out of a table.
    Drawn { size: usize, table: Vec<u8> },
}

impl Maker {
    fn new(ty: TensorType, spread: f32, random: &mut Random) -> Result<Self> {
        let size = ty.block_bytes();
        // Places of the scales in a block, relative to the first; minima centre the values on zero.
        let scales: &[(usize, f32)] = match ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => {
                let values: Vec<f32> = (0..TABLE).map(|_| spread * random.normal()).collect();
                let mut table = Vec::new();
                quant::encode(ty, &values, &mut table)?;
                return Ok(Self::Drawn { size, table });
            }
            TensorType::Q4_0 | TensorType::Q8_0 => &[(0, 1.0)],
            TensorType::Q4_1 => &[(0, 1.0), (2, -7.5)],
            TensorType::Q4_K => &[(0, 1.0), (2, 7.5)],
            TensorType::Q6_K => &[(208, 1.0)],
            _ => bail!("no random weights of type {ty}"),
        };
        let stamped = |scale: f32| Self::Stamped {
            size,
            halves: scales.iter().map(|&(at, share)| (at, half::f16::from_f32(scale * share).to_le_bytes())).collect(),
        };
        // What spread a scale of 1 gives is measured, not derived.
        let mut trial = vec![0; 64 * size];
        let mut values = vec![0.0; 64 * ty.block_len()];
        stamped(1.0).fill(&mut trial, &mut Random(7));
        quant::decode(ty, &trial, &mut values)?;
        let mean_square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        Ok(stamped(spread / mean_square.sqrt()))
    }

    /// Fills whole blocks.
    fn fill(&self, bytes: &mut [u8], random: &mut Random) {
        match self {
            Self::Stamped { size, halves } => {
                random.fill(bytes);
                for block in bytes.chunks_exact_mut(*size) {
                    for &(at, half) in halves {
                        block[at..at + 2].copy_from_slice(&half);
                    }
                }
            }
            Self::Drawn { size: 4, table } => draw::<4>(bytes, table, random),
            Self::Drawn { table, .. } => draw::<2>(bytes, table, random),
        }
    }
}

/// Fills with entries of `N` bytes of the table, four to a random number.
fn draw<const N: usize>(bytes: &mut [u8], table: &[u8], random: &mut Random) {
    let table = table.as_chunks::<N>().0;
    for values in bytes.as_chunks_mut::<N>().0.chunks_mut(4) {
        let mut bits = random.next();
        for value in values {
            *value = table[bits as usize % TABLE];
            bits >>= 16;
        }
    }
}

/// splitmix64 (Steele, Lea and Flood, 2014): one multiply chain per 8 bytes, and any seed will do.
struct Random(u64);

impl Random {
    /// A stream of its own for every seed and name (FNV-1a over the name).
    fn of(seed: u64, name: &str) -> Self {
        let start = 0xcbf2_9ce4_8422_2325u64 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut stream = Self(name.bytes().fold(start, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)));
        Self(stream.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = self.next().to_le_bytes();
        }
        let last = self.next().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// Uniform in `[0, 1)`.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// About normal: the sum of 12 uniform numbers has variance 1.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }
}
