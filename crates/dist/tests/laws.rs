//! Laws over any number of ranks, shapes and schedules.

use std::sync::Arc;
use std::time::Duration;

use dist::{Communicator, Mesh, run_threads};
use proptest::prelude::*;
use tensor::{Backend, DType, Tensor};

use crate::table::{backend, number, rounded};
use crate::within;

const LIMIT: Duration = Duration::from_secs(20);

fn bytes_of(backend: &Arc<dyn Backend>, x: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; x.len_bytes()];
    backend.download(&mut bytes, x).unwrap();
    bytes
}

fn reduce(num_ranks: usize, len: usize, dtype: DType) -> Vec<Vec<f32>> {
    let shards = run_threads(num_ranks, |ranks: Communicator| {
        let backend = backend();
        let numbers: Vec<f32> = (0..num_ranks * len).map(|i| number(ranks.rank(), i)).collect();
        let full = backend.from_f32([num_ranks * len], dtype, &numbers).unwrap();
        let shard = backend.zeros([len].into(), DType::F32).unwrap();
        let reduced = ranks.reduce_scatter(&backend, shard, full, false).wait()?;
        Ok::<_, dist::Error>(backend.to_f32(&reduced.shard).unwrap())
    });
    shards.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_is_sharded_and_gathered_is_what_it_was(
        num_ranks in 1usize..7,
        rows in 0usize..9,
        cols in 0usize..50,
        dtype in prop::sample::select(&[DType::F32, DType::Bf16, DType::I32][..]),
        seed in any::<u8>(),
    ) {
        let whole: Vec<u8> =
            (0..num_ranks * rows * cols * dtype.size_bytes()).map(|i| (i as u8).wrapping_mul(37) ^ seed).collect();
        let shard_bytes = whole.len() / num_ranks;
        let gathered = run_threads(num_ranks, |ranks| {
            let backend = backend();
            let mut shard = backend.alloc([rows, cols].into(), dtype).unwrap();
            backend.upload(&mut shard, &whole[ranks.rank() * shard_bytes..][..shard_bytes]).unwrap();
            let full = backend.alloc([num_ranks * rows, cols].into(), dtype).unwrap();
            let full = ranks.all_gather(&backend, full, &shard).wait()?;
            Ok::<_, dist::Error>(bytes_of(&backend, &full))
        });
        for found in gathered.unwrap() {
            prop_assert_eq!(&found, &whole);
        }
    }

    #[test]
    fn reduced_shards_equal_sums_in_f64_and_repeat(
        num_ranks in 1usize..7,
        len in 0usize..200,
        dtype in prop::sample::select(&[DType::F32, DType::Bf16][..]),
    ) {
        let shards = reduce(num_ranks, len, dtype);
        prop_assert_eq!(&reduce(num_ranks, len, dtype), &shards);
        for (i, found) in shards.into_iter().flatten().enumerate() {
            let terms = (0..num_ranks).map(|rank| f64::from(rounded(dtype, number(rank, i))));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
            let bound = num_ranks as f64 * f64::from(f32::EPSILON) * size;
            prop_assert!((f64::from(found) - sum).abs() <= bound, "expected {}, found {}", sum, found);
        }
    }
}

/// One operation of a random schedule.
#[derive(Debug, Clone, Copy)]
struct Planned {
    /// 0 = world, 1 = row, 2 = column.
    group: usize,
    kind: usize,
    len: usize,
    /// Bit r: rank r waits for it at once, not at the end.
    wait_at_once: u8,
}

fn schedules() -> impl Strategy<Value = Vec<Planned>> {
    let operation = (0usize..3, 0usize..5, 0usize..300, any::<u8>())
        .prop_map(|(group, kind, len, wait_at_once)| Planned { group, kind, len, wait_at_once });
    prop::collection::vec(operation, 0..40)
}

fn follow(schedule: &[Planned], mesh: &Mesh) -> dist::Result<()> {
    let backend = backend();
    let mut later: Vec<Box<dyn FnOnce() -> dist::Result<()>>> = Vec::new();
    for planned in schedule {
        let group = [&mesh.world, &mesh.shard, &mesh.replicate][planned.group];
        let num_ranks = group.world_size();
        let ones = |len: usize| backend.from_f32([len], DType::F32, &vec![1.0; len]).unwrap();
        let sum = num_ranks as f32;
        let check = |backend: &Arc<dyn Backend>, x: &Tensor, expected: f32| {
            assert!(backend.to_f32(x).unwrap().iter().all(|&x| x == expected));
        };
        let backend_later = Arc::clone(&backend);
        let wait: Box<dyn FnOnce() -> dist::Result<()>> = match planned.kind {
            0 => {
                let full = group.all_gather(&backend, ones(num_ranks * planned.len), &ones(planned.len));
                Box::new(move || full.wait().map(|full| check(&backend_later, &full, 1.0)))
            }
            1 => {
                let full = ones(num_ranks * planned.len);
                let reduced = group.reduce_scatter(&backend, ones(planned.len), full, true);
                Box::new(move || reduced.wait().map(|reduced| check(&backend_later, &reduced.shard, sum + 1.0)))
            }
            2 => {
                let x = group.all_reduce(&backend, ones(planned.len));
                Box::new(move || x.wait().map(|x| check(&backend_later, &x, sum)))
            }
            3 => {
                let bytes = group.gather_bytes(vec![7; planned.len * group.rank()]);
                Box::new(move || bytes.wait().map(|all| assert_eq!(all.len(), num_ranks)))
            }
            _ => {
                let barrier = group.barrier();
                Box::new(move || barrier.wait())
            }
        };
        if planned.wait_at_once >> mesh.world.rank() & 1 == 1 { wait()? } else { later.push(wait) }
    }
    later.into_iter().try_for_each(|wait| wait())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_schedule_over_nested_groups_deadlocks(
        schedule in schedules(),
        (replicate, shard) in prop::sample::select(&[(1usize, 3usize), (2, 2), (3, 1), (2, 3)][..]),
    ) {
        let run = move || {
            run_threads(replicate * shard, |world| follow(&schedule, &Mesh::new(world, replicate, shard)?))
        };
        prop_assert!(within(LIMIT, run).is_ok());
    }
}
