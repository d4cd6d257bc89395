//! From a path to a model: a file, any shard of a split set, or a directory with one of them. The shards are sought,
//! checked against each other, and joined. What one file must hold is in [`crate::part`].

use crate::directory::model_in;
use crate::file::{Gguf, Shard};
use crate::part::{Claim, Part};
use crate::shard_name::ShardName;
use crate::{Fault, GgufError, Warning, limits};
use std::io::ErrorKind;
use std::path::Path;

const ARCHITECTURE_KEY: &str = "general.architecture";

/// Opens what `path` means.
pub(crate) fn open(path: &Path) -> Result<Gguf, GgufError> {
    let path = if path.is_dir() { &model_in(path)? } else { path };
    let name = ShardName::parse(path);
    let absent = name.as_ref().map(absent_shards).unwrap_or_default();
    let missing = |name: &ShardName| {
        let (first, count) = (absent.first().copied().unwrap_or(0), name.count);
        let fault = Fault::MissingShards { missing: absent.iter().map(|i| i + 1).collect(), count };
        GgufError { path: Some(name.sibling(first)), offset: 0, fault }
    };
    // Where siblings are there, what is asked for was not misspelt.
    if let Some(name) = name.as_ref().filter(|n| absent.contains(&n.number) && (absent.len() as u64) < n.count) {
        return Err(missing(name));
    }
    let mut given = Part::open(path)?;
    let Some(claim) = given.claim()? else {
        if name.is_some_and(|name| name.count > 1) {
            given.warnings.push(Warning::NamedLikeShard { path: path.to_path_buf() });
        }
        return join(vec![given]);
    };
    let name = name.ok_or_else(|| given.fail(Fault::ShardName { number: claim.number + 1, count: claim.count }))?;
    if name.count != claim.count {
        return Err(given.fail(Fault::ShardCount { expected: name.count, declared: claim.count }));
    }
    if name.number != claim.number {
        return Err(given.fail(Fault::ShardNumber { expected: name.number + 1, declared: claim.number + 1 }));
    }
    if !absent.is_empty() {
        return Err(missing(&name));
    }
    let mut given = Some(given);
    let part = |i| match given.take_if(|_| i == claim.number) {
        Some(part) => Ok(part),
        None => Part::open(&name.sibling(i)),
    };
    join((0..claim.count).map(part).collect::<Result<_, _>>()?)
}

/// The shards, from 0, that have no file.
fn absent_shards(name: &ShardName) -> Vec<u64> {
    let is_absent = |&i: &u64| {
        let found = std::fs::metadata(name.sibling(i));
        found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    (0..name.count.min(limits::SHARDS)).filter(is_absent).collect()
}

/// Joins all shards of a set, in order, or takes a file that is whole.
pub(crate) fn join(parts: Vec<Part>) -> Result<Gguf, GgufError> {
    let claims = parts.iter().map(Part::claim).collect::<Result<Vec<_>, _>>()?;
    check_claims(&parts, &claims)?;
    let mut joined = Gguf::default();
    let mut total = 0u64;
    for (shard, part) in parts.into_iter().enumerate() {
        total += part.tensors.infos.len() as u64;
        if total > limits::TENSORS {
            return Err(part.fail(Fault::TooMany {
                what: "tensors in all shards",
                count: total,
                limit: limits::TENSORS,
            }));
        }
        for (mut info, &place) in part.tensors.infos.into_iter().zip(&part.tensors.places) {
            info.shard = shard;
            if let Some(first) = joined.index.insert(info.name.clone(), joined.tensors.len()) {
                let fault =
                    Fault::TensorInTwoShards { tensor: info.name, first: joined.tensors[first].shard as u64 + 1 };
                return Err(GgufError { path: part.path, offset: place, fault });
            }
            joined.tensors.push(info);
        }
        if shard == 0 {
            joined.metadata = part.metadata;
        }
        joined.warnings.extend(part.warnings);
        joined.shards.push(Shard {
            path: part.path,
            version: part.version,
            header_bytes: part.tensors.data_start,
            trailing_bytes: part.tensors.trailing,
            data: part.data,
            stamp: part.stamp,
        });
    }
    match claims.first().copied().flatten().and_then(|claim| claim.tensors) {
        Some(declared) if declared != total => {
            let path = joined.shards[0].path.clone();
            Err(GgufError { path, offset: 0, fault: Fault::ShardTensors { declared, found: total } })
        }
        _ => Ok(joined),
    }
}

/// That every part says to be the shard that it is taken for, of a set of this size, and of one model.
fn check_claims(parts: &[Part], claims: &[Option<Claim>]) -> Result<(), GgufError> {
    // A file that says nothing of a set is shard 0 of 1.
    let claims: Vec<Claim> = claims.iter().map(|c| c.unwrap_or(Claim { number: 0, count: 1, tensors: None })).collect();
    let architecture = |part: &Part| part.metadata.str(ARCHITECTURE_KEY).map(str::to_string);
    for (i, (part, claim)) in parts.iter().zip(&claims).enumerate() {
        if claim.count != parts.len() as u64 {
            return Err(part.fail(Fault::ShardCount { expected: parts.len() as u64, declared: claim.count }));
        }
        if claim.number != i as u64 {
            return Err(part.fail(Fault::ShardNumber { expected: i as u64 + 1, declared: claim.number + 1 }));
        }
        let foreign = |key, found: Option<String>, expected: Option<String>| match (found, expected) {
            (Some(found), Some(expected)) if found != expected => {
                Err(part.fail(Fault::ForeignShard { key, found, expected }))
            }
            _ => Ok(()),
        };
        foreign(ARCHITECTURE_KEY, architecture(part), architecture(&parts[0]))?;
        let tensors = |claim: &Claim| claim.tensors.map(|n| n.to_string());
        foreign(limits::SPLIT_TENSORS_KEY, tensors(claim), tensors(&claims[0]))?;
    }
    Ok(())
}
