//! Random weights of every type, quick to make: random bytes with sane scales stamped in, or entries of a table of
//! encoded values. Their spread gives a matrix about unit gain, so activations and logits stay finite at any depth.

use tombolo_gguf::quant::QuantError;
use tombolo_gguf::{TensorInfo, TensorType, quant};

/// Encoded values to draw from, for types without blocks; a power of two.
const TABLE: usize = 1 << 14;
/// Bytes made at a time, about.
const CHUNK: usize = 1 << 20;

/// A tensor's bytes: of one dimension norm weights around 1, or biases around 0; of more, matrices. The same for the same
/// seed, name, shape and type.
///
/// # Errors
/// A type that no weights can be made of.
pub fn bytes(info: &TensorInfo, seed: u64) -> Result<Vec<u8>, QuantError> {
    let mut all = Vec::with_capacity(info.bytes as usize);
    each_chunk(info, seed, |chunk| {
        all.extend_from_slice(chunk);
        Ok(())
    })?;
    Ok(all)
}

/// Hands the bytes of [`bytes`] to `write` part by part: nothing large is held.
///
/// # Errors
/// As [`bytes`], or what `write` says.
pub fn each_chunk<E: From<QuantError>>(
    info: &TensorInfo,
    seed: u64,
    mut write: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut random = Random::of(seed, &info.name);
    if info.dims.len() == 1 {
        let is_bias = info.name.ends_with(".bias");
        let value = |random: &mut Random| if is_bias { 0.02 * random.normal() } else { 0.75 + 0.5 * random.unit() };
        let values: Vec<f32> = (0..info.dims[0]).map(|_| value(&mut random)).collect();
        let mut bytes = Vec::new();
        quant::encode(info.ty, &values, &mut bytes)?;
        return write(&bytes);
    }
    let spread = 1.0 / (info.dims[0] as f32).sqrt();
    let maker = Maker::new(info.ty, spread, &mut random)?;
    let size = info.ty.block_bytes();
    let mut left = info.bytes as usize;
    let mut chunk = vec![0; ((CHUNK / size).max(1) * size).min(left)];
    while left > 0 {
        let bytes = left.min(chunk.len());
        maker.fill(&mut chunk[..bytes], &mut random);
        write(&chunk[..bytes])?;
        left -= bytes;
    }
    Ok(())
}

/// That weights of this type can be made.
///
/// # Errors
/// The type, where they cannot.
pub fn check(ty: TensorType) -> Result<(), QuantError> {
    Maker::new(ty, 1.0, &mut Random(1)).map(|_| ())
}

/// How blocks of a type are made.
enum Maker {
    /// Random bytes, with these stamped in at these places.
    Stamped { size: usize, stamps: Vec<(usize, Vec<u8>)> },
    /// Entries of `size` bytes out of a table.
    Drawn { size: usize, table: Vec<u8> },
}

impl Maker {
    fn new(ty: TensorType, spread: f32, random: &mut Random) -> Result<Self, QuantError> {
        let size = ty.block_bytes();
        // Places of the scales (f16) in a block, relative to the first; minima centre the values on zero.
        let scales: &[(usize, f32)] = match ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => {
                let values: Vec<f32> = (0..TABLE).map(|_| spread * random.normal()).collect();
                let mut table = Vec::new();
                quant::encode(ty, &values, &mut table)?;
                return Ok(Self::Drawn { size, table });
            }
            TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 | TensorType::IQ4_NL | TensorType::IQ4_XS => {
                &[(0, 1.0)]
            }
            TensorType::Q4_1 => &[(0, 1.0), (2, -7.5)],
            TensorType::Q5_1 => &[(0, 1.0), (2, -15.5)],
            TensorType::Q4_K => &[(0, 1.0), (2, 7.5)],
            TensorType::Q5_K => &[(0, 1.0), (2, 15.5)],
            TensorType::Q2_K => &[(80, 1.0), (82, 1.5)],
            TensorType::Q3_K => &[(108, 1.0)],
            TensorType::Q6_K => &[(208, 1.0)],
            // One byte, a power of two: 2^(e - 128) times values of about 6 at the most.
            TensorType::MXFP4 => {
                let exponent = (128.0 + (spread / 3.5).log2().round()).clamp(1.0, 254.0) as u8;
                return Ok(Self::Stamped { size, stamps: vec![(0, vec![exponent])] });
            }
            _ => return Err(QuantError::Unsupported { ty }),
        };
        let stamped = |scale: f32| {
            let half = |share: f32| half::f16::from_f32(scale * share).to_le_bytes().to_vec();
            Self::Stamped { size, stamps: scales.iter().map(|&(at, share)| (at, half(share))).collect() }
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
            Self::Stamped { size, stamps } => {
                random.fill(bytes);
                for block in bytes.chunks_exact_mut(*size) {
                    for (at, stamp) in stamps {
                        block[*at..at + stamp.len()].copy_from_slice(stamp);
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
