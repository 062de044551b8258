//! What the communication thread does for each operation: tensors and messages through host memory, in chunks.
//!
//! Memory: a chunk is at most [`CHUNK_BYTES`] a rank and [`ALL_CHUNKS_BYTES`] for all, whatever the tensors' sizes.
//! Numbers: sums in f32, in rank order, one rounding at the store.

use std::ops::Range;
use std::sync::atomic::Ordering;

use tensor::{Backend, Tensor};

use crate::collective::Collective;
use crate::worker::{Groups, Stage};
use crate::{Operation, Reduced, Result, numbers};

/// The most that one rank gives at once: large enough to hide what a round costs.
const CHUNK_BYTES: usize = 4 << 20;
/// The most that all ranks give at once.
const ALL_CHUNKS_BYTES: usize = 64 << 20;

/// The most that a rank of so many gives at once.
fn chunk_bytes(num_ranks: usize) -> usize {
    (ALL_CHUNKS_BYTES / num_ranks).clamp(1024, CHUNK_BYTES)
}

/// The ranges of `len` elements, `per_chunk` at a time.
fn chunks(len: usize, per_chunk: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(per_chunk).map(move |start| start..len.min(start + per_chunk))
}

fn flat(x: &Tensor) -> Result<Tensor> {
    Ok(x.reshape([x.num_elements()])?)
}

/// The first `len` of a buffer that grows as needed.
fn first<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}

pub(crate) fn all_gather(
    groups: &mut Groups,
    group: usize,
    operation: &mut Operation,
    backend: &dyn Backend,
    full: Tensor,
    shard: &Tensor,
) -> Result<Tensor> {
    let _span = backend.span(|| "all_gather");
    let Groups { list, stage, counters, .. } = groups;
    list[group].agree(operation)?;
    let engine = &mut *list[group].engine;
    let (me, num_ranks) = (engine.rank(), engine.world_size());
    let (len, size) = (shard.num_elements(), shard.dtype().size_bytes());
    let (shard, all) = (flat(shard)?, flat(&full)?);
    for range in chunks(len, (chunk_bytes(num_ranks) / size).max(1)) {
        let mine = first(&mut stage.bytes, range.len() * size);
        backend.download(mine, &shard.rows(range.clone())?)?;
        engine.all_gather(mine, &mut |rank, theirs| {
            if rank != me {
                counters.gathered.fetch_add(theirs.len() as u64, Ordering::Relaxed);
            }
            let start = rank * len;
            Ok(backend.upload(&mut all.rows(start + range.start..start + range.end)?, theirs)?)
        })?;
    }
    Ok(full)
}

pub(crate) fn reduce_scatter(
    groups: &mut Groups,
    group: usize,
    operation: &mut Operation,
    backend: &dyn Backend,
    shard: Tensor,
    full: Tensor,
    accumulate: bool,
) -> Result<Reduced> {
    let _span = backend.span(|| "reduce_scatter");
    let Groups { list, stage, counters, .. } = groups;
    list[group].agree(operation)?;
    let engine = &mut *list[group].engine;
    let num_ranks = engine.world_size();
    let (len, size) = (shard.num_elements(), full.dtype().size_bytes());
    let (sums_to, all) = (flat(&shard)?, flat(&full)?);
    for range in chunks(len, (chunk_bytes(num_ranks) / (num_ranks * size)).max(1)) {
        let piece_len = range.len() * size;
        let pieces = first(&mut stage.bytes, num_ranks * piece_len);
        for rank in 0..num_ranks {
            let start = rank * len;
            let piece = &mut pieces[rank * piece_len..][..piece_len];
            backend.download(piece, &all.rows(start + range.start..start + range.end)?)?;
        }
        let received = sum_pieces(engine, stage, range.len(), full.dtype())?;
        counters.reduced.fetch_add(received, Ordering::Relaxed);
        let mut part = sums_to.rows(range.clone())?;
        let stored = first(&mut stage.bytes, part.len_bytes());
        let sums = &mut stage.sums[..range.len()];
        if accumulate {
            backend.download(stored, &part)?;
            numbers::add(sums, stored, part.dtype());
        }
        numbers::round(stored, sums, part.dtype());
        backend.upload(&mut part, stored)?;
    }
    Ok(Reduced { shard, full })
}

/// Sums what all ranks have for this one: `stage.bytes` begins with a piece of `len` numbers for each rank, `stage.sums`
/// begins with the sums after it. Returns the bytes that came from other ranks.
fn sum_pieces(engine: &mut dyn Collective, stage: &mut Stage, len: usize, dtype: tensor::DType) -> Result<u64> {
    let (me, num_ranks) = (engine.rank(), engine.world_size());
    let piece_len = len * dtype.size_bytes();
    let sums = first(&mut stage.sums, len);
    let mut received = 0;
    engine.all_to_all(&stage.bytes[..num_ranks * piece_len], piece_len, &mut |rank, piece| {
        if rank != me {
            received += piece.len() as u64;
        }
        if rank == 0 {
            numbers::widen(sums, piece, dtype);
        } else {
            numbers::add(sums, piece, dtype);
        }
        Ok(())
    })?;
    Ok(received)
}

/// Each chunk is cut into a piece a rank; every rank sums its piece, and all gather the sums.
pub(crate) fn all_reduce(
    groups: &mut Groups,
    group: usize,
    operation: &mut Operation,
    backend: &dyn Backend,
    x: Tensor,
) -> Result<Tensor> {
    let _span = backend.span(|| "all_reduce");
    let Groups { list, stage, counters, .. } = groups;
    list[group].agree(operation)?;
    let engine = &mut *list[group].engine;
    let (me, num_ranks) = (engine.rank(), engine.world_size());
    let (dtype, size) = (x.dtype(), x.dtype().size_bytes());
    let all = flat(&x)?;
    for range in chunks(x.num_elements(), (chunk_bytes(num_ranks) / size).max(1)) {
        let piece_elements = range.len().div_ceil(num_ranks);
        let piece_len = piece_elements * size;
        let pieces = first(&mut stage.bytes, num_ranks * piece_len);
        let (numbers_of_chunk, padding) = pieces.split_at_mut(range.len() * size);
        backend.download(numbers_of_chunk, &all.rows(range.clone())?)?;
        padding.fill(0);
        let received = sum_pieces(engine, stage, piece_elements, dtype)?;
        counters.reduced.fetch_add(received, Ordering::Relaxed);
        let mine = &mut stage.bytes[..piece_len];
        numbers::round(mine, &stage.sums[..piece_elements], dtype);
        engine.all_gather(mine, &mut |rank, sums| {
            if rank != me {
                counters.reduced.fetch_add(sums.len() as u64, Ordering::Relaxed);
            }
            // The last pieces may be padding, in part or all of them.
            let start = range.end.min(range.start + rank * piece_elements);
            let end = range.end.min(start + piece_elements);
            Ok(backend.upload(&mut all.rows(start..end)?, &sums[..(end - start) * size])?)
        })?;
    }
    Ok(x)
}

/// Calls `each(rank, bytes)` with what every rank gives, in rank order within a chunk and chunk by chunk. `num_bytes` is
/// what each rank has, as headers told.
fn exchange(
    engine: &mut dyn Collective,
    mine: &[u8],
    num_bytes: &[usize],
    each: &mut dyn FnMut(usize, &[u8]),
) -> Result<()> {
    let longest = num_bytes.iter().copied().max().unwrap_or(0);
    for range in chunks(longest, chunk_bytes(num_bytes.len())) {
        let part = &mine[mine.len().min(range.start)..mine.len().min(range.end)];
        engine.all_gather(part, &mut |rank, theirs| {
            each(rank, theirs);
            Ok(())
        })?;
    }
    Ok(())
}

pub(crate) fn gather_bytes(
    groups: &mut Groups,
    group: usize,
    operation: &mut Operation,
    mine: &[u8],
) -> Result<Vec<Vec<u8>>> {
    let group = &mut groups.list[group];
    let num_bytes = group.agree(operation)?;
    let mut all: Vec<Vec<u8>> = num_bytes.iter().map(|&len| Vec::with_capacity(len)).collect();
    exchange(&mut *group.engine, mine, &num_bytes, &mut |rank, theirs| all[rank].extend_from_slice(theirs))?;
    Ok(all)
}

pub(crate) fn broadcast(
    groups: &mut Groups,
    group: usize,
    operation: &mut Operation,
    root: usize,
    mine: &[u8],
) -> Result<Vec<u8>> {
    let group = &mut groups.list[group];
    let num_bytes = group.agree(operation)?;
    let mut bytes = Vec::with_capacity(num_bytes[root]);
    exchange(&mut *group.engine, mine, &num_bytes, &mut |_, theirs| bytes.extend_from_slice(theirs))?;
    Ok(bytes)
}

pub(crate) fn sum(groups: &mut Groups, group: usize, operation: &mut Operation, values: &[f64]) -> Result<Vec<f64>> {
    let mut sums = vec![0.0; values.len()];
    for (rank, theirs) in gather_bytes(groups, group, operation, bytemuck::cast_slice(values))?.iter().enumerate() {
        for (sum, &value) in sums.iter_mut().zip(theirs.as_chunks().0) {
            let value = f64::from_ne_bytes(value);
            // The first value itself: adding it to zero would lose the sign of a negative zero.
            *sum = if rank == 0 { value } else { *sum + value };
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_everything_once() {
        for (len, per_chunk) in [(0, 3), (1, 3), (3, 3), (7, 3), (9, 1)] {
            let all: Vec<usize> = chunks(len, per_chunk).flatten().collect();
            assert_eq!(all, (0..len).collect::<Vec<_>>(), "{len} by {per_chunk}");
            assert!(chunks(len, per_chunk).all(|range| range.len() <= per_chunk));
        }
    }

    #[test]
    fn many_ranks_share_the_memory_of_a_chunk() {
        assert_eq!(chunk_bytes(1), CHUNK_BYTES);
        assert_eq!(chunk_bytes(16), CHUNK_BYTES);
        assert_eq!(chunk_bytes(64) * 64, ALL_CHUNKS_BYTES);
        assert!(chunk_bytes(1 << 30) >= 1024);
    }
}
