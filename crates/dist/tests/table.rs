//! What every engine must do: cases that all ranks run together, on threads and as MPI processes.
//!
//! Each rank knows what the others give (numbers are made from the rank), so it checks its results against exact bits.

use std::sync::Arc;

use cpu::{CpuBackend, CpuConfig};
use dist::{Communicator, Mesh, Result, Traffic};
use half::bf16;
use tensor::{Backend, DType, Shape, Tensor};

pub type Case = fn(&Communicator, &Arc<dyn Backend>) -> Result<()>;

pub const CASES: &[(&str, Case)] = &[
    ("gathered shards stand in rank order", gathers),
    ("a shard may lie in its full tensor", gathers_in_place),
    ("reduced shards are exact sums in rank order", reduces),
    ("all ranks get the same sums", all_reduces),
    ("messages of any length arrive", messages),
    ("values are summed in f64", sums),
    ("groups of a mesh work side by side", mesh),
    ("groups of groups keep the order of ranks", nested_groups),
    ("operations queue up and may be dropped", queued),
    ("received bytes are counted by kind", traffic),
];

/// More than one chunk for every dtype, and a multiple of nothing.
const LONG: usize = 2_300_001;
const LENGTHS: [usize; 5] = [0, 1, 5, 1000, LONG];
const FLOATS: [DType; 2] = [DType::F32, DType::Bf16];

pub fn run(case: Case, ranks: &Communicator) -> Result<()> {
    case(ranks, &backend())
}

pub fn backend() -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(CpuConfig { threads: Some(1), ..CpuConfig::default() }).unwrap())
}

/// A case that fails.
pub fn wrong(ranks: &Communicator, _: &Arc<dyn Backend>) -> Result<()> {
    let sums = ranks.sum(vec![1.0]).wait()?;
    assert_eq!(sums[0], ranks.world_size() as f64 + 1.0, "wrong on purpose");
    Ok(())
}

/// Number `index` of what a rank gives: of either sign, with more digits than bf16 has.
pub fn number(rank: usize, index: usize) -> f32 {
    let mixed = (index as u32).wrapping_mul(2_654_435_761).wrapping_add(rank as u32 * 40_503 + 1);
    (mixed >> 8) as f32 / 65_536.0 - 128.0
}

pub fn rounded(dtype: DType, x: f32) -> f32 {
    if dtype == DType::Bf16 { bf16::from_f32(x).to_f32() } else { x }
}

fn tensor(backend: &Arc<dyn Backend>, dtype: DType, len: usize, number: impl Fn(usize) -> f32) -> Tensor {
    let numbers: Vec<f32> = (0..len).map(number).collect();
    backend.from_f32([len], dtype, &numbers).unwrap()
}

#[track_caller]
fn assert_numbers(backend: &Arc<dyn Backend>, x: &Tensor, expected: impl Fn(usize) -> f32) {
    for (i, found) in backend.to_f32(x).unwrap().into_iter().enumerate() {
        let expected = expected(i);
        assert_eq!(found.to_bits(), expected.to_bits(), "number {i}: expected {expected}, found {found}");
    }
}

fn gathers(ranks: &Communicator, backend: &Arc<dyn Backend>) -> Result<()> {
    let num_ranks = ranks.world_size();
    for len in LENGTHS {
        for dtype in FLOATS {
            let shard = tensor(backend, dtype, len, |i| number(ranks.rank(), i));
            let full = backend.alloc(Shape::new(&[num_ranks, len]), dtype).unwrap();
            let full = ranks.all_gather(backend, full, &shard).wait()?;
            assert_eq!(full.dims(), [num_ranks, len]);
            assert!(full.is_unique() && shard.is_unique(), "nothing holds on to tensors");
            assert_numbers(backend, &full, |i| rounded(dtype, number(i / len, i % len)));
        }
        let shard = backend.from_i32([len], &vec![ranks.rank() as i32 - 7; len]).unwrap();
        let full = ranks.all_gather(backend, backend.alloc([num_ranks * len].into(), DType::I32).unwrap(), &shard);
        let mut found = vec![0i32; num_ranks * len];
        backend.download(bytemuck::cast_slice_mut(&mut found), &full.wait()?).unwrap();
        assert!(found.iter().enumerate().all(|(i, &x)| x == (i / len) as i32 - 7));
    }
    Ok(())
}

fn gathers_in_place(ranks: &Communicator, backend: &Arc<dyn Backend>) -> Result<()> {
    let len = 37;
    let mine = ranks.rank() * len..(ranks.rank() + 1) * len;
    let full = tensor(backend, DType::F32, ranks.world_size() * len, |i| {
        if mine.contains(&i) { number(ranks.rank(), i) } else { f32::NAN }
    });
    let shard = full.rows(mine).unwrap();
    let full = ranks.all_gather(backend, full, &shard).wait()?;
    assert_numbers(backend, &full, |i| number(i / len, i));
    Ok(())
}

fn reduces(ranks: &Communicator, backend: &Arc<dyn Backend>) -> Result<()> {
    let (me, num_ranks) = (ranks.rank(), ranks.world_size());
    // A piece of a chunk is smaller than a chunk.
    for len in [0, 1, 5, 1000, LONG / 4] {
        for (from, to) in FLOATS.into_iter().flat_map(|from| FLOATS.map(|to| (from, to))) {
            for accumulate in [false, true] {
                let full = tensor(backend, from, num_ranks * len, |i| number(me, i));
                let shard = tensor(backend, to, len, |i| number(99, i));
                let reduced = ranks.reduce_scatter(backend, shard, full, accumulate).wait()?;
                assert!(reduced.shard.is_unique() && reduced.full.is_unique());
                assert_numbers(backend, &reduced.full, |i| rounded(from, number(me, i)));
                assert_numbers(backend, &reduced.shard, |i| {
                    let terms = (0..num_ranks).map(|rank| rounded(from, number(rank, me * len + i)));
                    let sum = terms.reduce(|a, b| a + b).unwrap();
                    rounded(to, if accumulate { rounded(to, number(99, i)) + sum } else { sum })
                });
            }
        }
    }
    Ok(())
}

fn all_reduces(ranks: &Communicator, backend: &Arc<dyn Backend>) -> Result<()> {
    for len in LENGTHS {
        for dtype in FLOATS {
            let x = tensor(backend, dtype, len, |i| number(ranks.rank(), i));
            let x = ranks.all_reduce(backend, x).wait()?;
            assert_numbers(backend, &x, |i| {
                let terms = (0..ranks.world_size()).map(|rank| rounded(dtype, number(rank, i)));
                rounded(dtype, terms.reduce(|a, b| a + b).unwrap())
            });
        }
    }
    Ok(())
}

fn messages(ranks: &Communicator, _: &Arc<dyn Backend>) -> Result<()> {
    let (me, num_ranks) = (ranks.rank(), ranks.world_size());
    // Nothing, what fits into a header's room, what does not, and several chunks.
    let lengths = [0, 1, 119, 120, 121, 9_000_001];
    let message = |rank: usize, len: usize| vec![rank as u8 + 1; len / (rank + 1)];
    for len in lengths {
        // From different lines, as messages may be.
        let pending = if me == 0 { ranks.gather_bytes(message(0, len)) } else { ranks.gather_bytes(message(me, len)) };
        let expected: Vec<_> = (0..num_ranks).map(|rank| message(rank, len)).collect();
        assert!(pending.wait()? == expected, "messages of {len} bytes");
        for root in 0..num_ranks {
            let bytes =
                if me == root { ranks.broadcast(root, message(root, len)) } else { ranks.broadcast(root, vec![0]) };
            assert!(bytes.wait()? == message(root, len), "{len} bytes from {root}");
        }
    }
    ranks.barrier().wait()
}

fn sums(ranks: &Communicator, _: &Arc<dyn Backend>) -> Result<()> {
    let value = |rank: usize, i: usize| 0.1 + f64::from(number(rank, i)) / 3.0;
    for len in [0, 1, 3, 100] {
        let found = ranks.sum((0..len).map(|i| value(ranks.rank(), i)).collect()).wait()?;
        let sum = |i| (0..ranks.world_size()).map(|rank| value(rank, i)).reduce(|a, b| a + b).unwrap();
        assert_eq!(found, (0..len).map(sum).collect::<Vec<_>>());
    }
    Ok(())
}

fn mesh(ranks: &Communicator, backend: &Arc<dyn Backend>) -> Result<()> {
    let num_ranks = ranks.world_size();
    for replicate in (1..=num_ranks).filter(|replicate| num_ranks.is_multiple_of(*replicate)) {
        let shard = num_ranks / replicate;
        let mesh = Mesh::new(ranks.clone(), replicate, shard)?;
        assert_eq!((mesh.shard.world_size(), mesh.replicate.world_size()), (shard, replicate));
        assert_eq!(mesh.world.rank(), mesh.replicate.rank() * shard + mesh.shard.rank());

        // A replica's gradients, sharded and then summed over replicas: what hybrid sharding does.
        let full = tensor(backend, DType::F32, shard * 10, |_| mesh.world.rank() as f32);
        let part = tensor(backend, DType::F32, 10, |_| f32::NAN);
        let part = mesh.shard.reduce_scatter(backend, part, full, false).wait()?.shard;
        let part = mesh.replicate.all_reduce(backend, part).wait()?;
        let total = (num_ranks * (num_ranks - 1) / 2) as f32;
        assert_numbers(backend, &part, |_| total);
        let row = mesh.shard.gather_bytes(vec![ranks.rank() as u8]).wait()?;
        let first = mesh.replicate.rank() * shard;
        assert_eq!(row, (first..first + shard).map(|rank| vec![rank as u8]).collect::<Vec<_>>());
    }
    let error = Mesh::new(ranks.clone(), 7, num_ranks).unwrap_err();
    assert!(matches!(error, dist::Error::Mesh { replicate: 7, .. }), "{error}");
    Ok(())
}

fn nested_groups(ranks: &Communicator, _: &Arc<dyn Backend>) -> Result<()> {
    // All but the first rank, then each alone; the same colors twice make different groups.
    let rest = ranks.split(usize::from(ranks.rank() > 0))?;
    let again = ranks.split(usize::from(ranks.rank() > 0))?;
    let expected: Vec<Vec<u8>> =
        if ranks.rank() == 0 { vec![vec![0]] } else { (1..ranks.world_size() as u8).map(|rank| vec![rank]).collect() };
    for group in [&rest, &again] {
        assert_eq!(group.gather_bytes(vec![ranks.rank() as u8]).wait()?, expected);
        let alone = group.split(group.rank())?;
        assert_eq!((alone.rank(), alone.world_size()), (0, 1));
        assert_eq!(alone.sum(vec![3.0]).wait()?, [3.0]);
    }
    Ok(())
}

fn queued(ranks: &Communicator, backend: &Arc<dyn Backend>) -> Result<()> {
    let num_ranks = ranks.world_size();
    let pending: Vec<_> = (0..20)
        .map(|i| {
            drop(ranks.sum(vec![1.0]));
            let x = ranks.all_reduce(backend, tensor(backend, DType::F32, 100, |_| i as f32));
            (ranks.gather_bytes(vec![i; i as usize]), x)
        })
        .collect();
    // The last are waited for first.
    for (i, (bytes, x)) in pending.into_iter().enumerate().rev() {
        assert_numbers(backend, &x.wait()?, |_| (i * num_ranks) as f32);
        assert_eq!(bytes.wait()?, vec![vec![i as u8; i]; num_ranks]);
    }
    drop(ranks.barrier());
    Ok(())
}

fn traffic(ranks: &Communicator, backend: &Arc<dyn Backend>) -> Result<()> {
    let (num_ranks, len) = (ranks.world_size(), 1200);
    let others = (num_ranks - 1) as u64;
    let before = ranks.traffic();
    let since = |before: Traffic| {
        let Traffic { gathered, reduced } = ranks.traffic();
        (gathered - before.gathered, reduced - before.reduced)
    };
    let shard = tensor(backend, DType::Bf16, len, |_| 1.0);
    let full = tensor(backend, DType::Bf16, num_ranks * len, |_| 1.0);
    let full = ranks.all_gather(backend, full, &shard).wait()?;
    let one_shard = 2 * len as u64;
    assert_eq!(since(before), (others * one_shard, 0));
    let reduced = ranks.reduce_scatter(backend, shard, full, false).wait()?;
    assert_eq!(since(before), (others * one_shard, others * one_shard));
    // The parts of an all-reduce: each rank receives its piece from all others, and the sums of theirs.
    ranks.all_reduce(backend, reduced.shard).wait()?;
    let pieces = 2 * others * (one_shard / num_ranks as u64);
    assert_eq!(since(before), (others * one_shard, others * one_shard + pieces));
    ranks.sum(vec![1.0]).wait()?;
    assert_eq!(since(before).0, others * one_shard, "messages are not counted");
    Ok(())
}
