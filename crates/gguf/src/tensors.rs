//! Tensor descriptions: read, and checked against each other and against the file.

use crate::cursor::Cursor;
use crate::metadata::Metadata;
use crate::{Fault, GgufError, TensorType, header, limits};
use std::collections::HashSet;
use std::io::Read;

/// A tensor of a file. Everything in it has been checked: its bytes lie inside the file and overlap no others.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Lengths, the contiguous dimension (in-features) first; 1 to 4 of them, none 0.
    pub dims: Vec<u64>,
    /// How values are stored.
    pub ty: TensorType,
    /// The file that it lies in, counted from 0: always 0 where the model is one file.
    pub shard: usize,
    /// Where its bytes start, counted from the start of that file's data section.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

impl TensorInfo {
    /// Values in it.
    pub fn values(&self) -> u64 {
        self.dims.iter().product()
    }
}

/// The tensors of a file, and the data section that they lie in.
pub(crate) struct Tensors {
    pub(crate) infos: Vec<TensorInfo>,
    /// Where each description starts: later checks point there.
    pub(crate) places: Vec<u64>,
    /// Where the data section starts in the file.
    pub(crate) data_start: u64,
    /// Where the file could end: after the header or the last tensor, or after the padding that follows.
    pub(crate) ends: [u64; 2],
    /// Bytes after the last tensor and its padding.
    pub(crate) trailing: u64,
}

/// Reads `count` descriptions.
pub(crate) fn tensors<R: Read>(c: &mut Cursor<R>, count: u64, metadata: &Metadata) -> Result<Tensors, GgufError> {
    // It was checked when it was read.
    let alignment = metadata.u64(limits::ALIGNMENT_KEY).unwrap_or(limits::DEFAULT_ALIGNMENT);
    let mut infos = Vec::with_capacity(count as usize);
    let mut names = HashSet::with_capacity(count as usize);
    let mut places = Vec::with_capacity(count as usize);
    for i in 0..count {
        let place = c.position();
        let info = tensor(c, i, alignment)?;
        if !names.insert(info.name.clone()) {
            return Err(c.fail_at(place, Fault::DuplicateTensor { tensor: info.name }));
        }
        infos.push(info);
        places.push(place);
    }
    // Neither sum can overflow: the position is at most the file's length, and the alignment is small.
    let header = c.position();
    let data_start = header.next_multiple_of(alignment);
    let mut tensors = Tensors { infos, places, data_start, ends: [header; 2], trailing: 0 };
    inside(c, &tensors)?;
    let end = apart(c, &tensors)?;
    let last = if tensors.infos.is_empty() { header } else { data_start + end };
    tensors.ends = [last, data_start.saturating_add(end.next_multiple_of(alignment))];
    tensors.trailing = c.length().saturating_sub(tensors.ends[1]);
    Ok(tensors)
}

fn tensor<R: Read>(c: &mut Cursor<R>, index: u64, alignment: u64) -> Result<TensorInfo, GgufError> {
    let name = tensor_name(c, index)?;
    let place = || format!("the description of tensor {name:?}");
    let n = c.u32(place())?;
    if n == 0 || n > limits::DIMS {
        return Err(c.fail(Fault::BadDimCount { tensor: name, dims: n, limit: limits::DIMS }));
    }
    let mut dims = Vec::with_capacity(n as usize);
    for axis in 0..n as usize {
        let value = c.u64(place())?;
        if value == 0 {
            return Err(c.fail(Fault::ZeroDim { tensor: name, axis }));
        }
        if value > i64::MAX as u64 {
            return Err(c.fail(Fault::BadDim { tensor: name, axis, value }));
        }
        dims.push(value);
    }
    let id = c.u32(place())?;
    let ty = match TensorType::from_id(id) {
        Some(ty) => ty,
        None if TensorType::is_removed(id) => return Err(c.fail(Fault::RemovedType { tensor: name, id })),
        None => return Err(c.fail(Fault::UnknownType { tensor: name, id })),
    };
    let bytes = match data_bytes(&dims, ty) {
        Ok(bytes) => bytes,
        Err(Misfit::Block) => {
            let fault = Fault::BadBlock { tensor: name, cols: dims[0], block: ty.block_len(), ty };
            return Err(c.fail(fault));
        }
        Err(Misfit::Overflow) => return Err(c.fail(Fault::ShapeOverflow { tensor: name, dims })),
    };
    let offset = c.u64(place())?;
    if !offset.is_multiple_of(alignment) {
        return Err(c.fail(Fault::UnalignedOffset { tensor: name, data_offset: offset, alignment }));
    }
    Ok(TensorInfo { name, dims, ty, shard: 0, offset, bytes })
}

fn tensor_name<R: Read>(c: &mut Cursor<R>, index: u64) -> Result<String, GgufError> {
    let place = || format!("the name of tensor {index}");
    let length = c.u64(place())?;
    if length > limits::TENSOR_NAME_BYTES {
        return Err(c.fail(Fault::TensorNameTooLong { index, length, limit: limits::TENSOR_NAME_BYTES }));
    }
    let bytes = c.bytes(length, place())?;
    let name = header::name(bytes).map_err(|(name, why)| c.fail(Fault::BadTensorName { index, name, why }))?;
    if name.is_empty() {
        return Err(c.fail(Fault::BadTensorName { index, name, why: "is empty" }));
    }
    Ok(name)
}

/// Why a shape and a type do not go together.
pub(crate) enum Misfit {
    /// Rows are no whole number of blocks.
    Block,
    /// More than 2^63 values or bytes.
    Overflow,
}

/// Bytes of a tensor.
pub(crate) fn data_bytes(dims: &[u64], ty: TensorType) -> Result<u64, Misfit> {
    let block = ty.block_len() as u64;
    let cols = dims.first().copied().unwrap_or(1);
    if !cols.is_multiple_of(block) {
        return Err(Misfit::Block);
    }
    let most = |n: Option<u64>| n.filter(|&n| n <= i64::MAX as u64).ok_or(Misfit::Overflow);
    let values = dims.iter().try_fold(1u64, |n, &d| most(n.checked_mul(d)))?;
    most((values / block).checked_mul(ty.block_bytes() as u64))
}

/// That every tensor ends inside the file.
fn inside<R: Read>(c: &Cursor<R>, tensors: &Tensors) -> Result<(), GgufError> {
    let mut missing: Option<(usize, u64)> = None;
    for (i, info) in tensors.infos.iter().enumerate() {
        let end = u128::from(tensors.data_start) + u128::from(info.offset) + u128::from(info.bytes);
        let past = end.saturating_sub(u128::from(c.length()));
        let past = u64::try_from(past).unwrap_or(u64::MAX);
        if past > missing.map_or(0, |(_, most)| most) {
            missing = Some((i, past));
        }
    }
    match missing {
        None => Ok(()),
        Some((i, missing)) => {
            let tensor = tensors.infos[i].name.clone();
            Err(c.fail_at(tensors.places[i], Fault::PastEnd { tensor, missing, file_bytes: c.length() }))
        }
    }
}

/// That no two tensors share bytes; gives the end of the last one, counted from the start of the data section.
fn apart<R: Read>(c: &Cursor<R>, tensors: &Tensors) -> Result<u64, GgufError> {
    let infos = &tensors.infos;
    let mut order: Vec<usize> = (0..infos.len()).collect();
    order.sort_by_key(|&i| (infos[i].offset, i));
    let mut end = 0;
    for (n, &i) in order.iter().enumerate() {
        let info = &infos[i];
        if info.offset < end {
            let first = infos[order[n - 1]].name.clone();
            let fault = Fault::Overlap { first, second: info.name.clone(), bytes: end - info.offset };
            return Err(c.fail_at(tensors.places[i], fault));
        }
        // Inside the file, so the sum is too.
        end = info.offset + info.bytes;
    }
    Ok(end)
}
