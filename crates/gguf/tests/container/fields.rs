//! Where the fields of a well-formed file are: a second, trusting reader, so that mutations can aim.

/// What a field is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A count, length, dimension, offset or type: what arithmetic is done with.
    Number,
    /// The bytes of a string.
    Text,
    /// A value that nothing else depends on.
    Value,
}

/// A field's place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) kind: Kind,
}

/// A file's fields, and which bytes each metadata entry and each tensor's description takes.
#[derive(Default)]
pub(crate) struct Fields {
    pub(crate) fields: Vec<Field>,
    pub(crate) entries: Vec<std::ops::Range<usize>>,
    pub(crate) tensors: Vec<std::ops::Range<usize>>,
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    found: Fields,
}

impl Walk<'_> {
    /// `None` where the file ends.
    fn field(&mut self, len: usize, kind: Kind) -> Option<&[u8]> {
        let at = self.at;
        let bytes = self.bytes.get(at..at.checked_add(len)?)?;
        self.found.fields.push(Field { at, len, kind });
        self.at += len;
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.field(4, Kind::Number)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<usize> {
        self.field(8, Kind::Number)?.try_into().ok().map(|b| u64::from_le_bytes(b) as usize)
    }

    fn string(&mut self) -> Option<()> {
        let length = self.u64()?;
        self.field(length, Kind::Text).map(drop)
    }

    fn value(&mut self, ty: u32) -> Option<()> {
        match ty {
            0 | 1 | 7 => self.field(1, Kind::Value).map(drop),
            2 | 3 => self.field(2, Kind::Value).map(drop),
            4..=6 => self.field(4, Kind::Value).map(drop),
            10..=12 => self.field(8, Kind::Value).map(drop),
            8 => self.string(),
            9 => {
                let (ty, n) = (self.u32()?, self.u64()?);
                (0..n).try_for_each(|_| self.value(ty))
            }
            _ => None,
        }
    }

    fn file(&mut self) -> Option<()> {
        self.field(4, Kind::Text)?;
        self.u32()?;
        let (tensors, entries) = (self.u64()?, self.u64()?);
        for _ in 0..entries {
            let start = self.at;
            self.string()?;
            let ty = self.u32()?;
            self.value(ty)?;
            self.found.entries.push(start..self.at);
        }
        for _ in 0..tensors {
            let start = self.at;
            self.string()?;
            let dims = self.u32()?;
            (0..dims).try_for_each(|_| self.u64().map(drop))?;
            self.u32()?;
            self.u64()?;
            self.found.tensors.push(start..self.at);
        }
        Some(())
    }
}

/// The fields of `bytes`, as far as they go.
pub(crate) fn fields(bytes: &[u8]) -> Fields {
    let mut walk = Walk { bytes, at: 0, found: Fields::default() };
    // A file that was mutated before may end early: its first fields are enough.
    let _ = walk.file();
    walk.found
}
