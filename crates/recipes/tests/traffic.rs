//! How many bytes ranks send each other: what `ARCHITECTURE.md` says, to the byte.

use dist::{Communicator, Mesh, Traffic};
use tensor::{DType, ModelLayout};
use train::Policy;

use crate::tiny::{self, Trainer, adamw, backend, batch, rows};

/// Bytes of a unit's parameters: each begins at a multiple of 256 elements, and so does each rank's shard of the unit.
fn padded_bytes(layout: &ModelLayout, unit: usize, dtype: DType, num_shards: usize) -> u64 {
    let lengths = layout.units[unit].owns.iter().map(|&id| layout.param(id).shape.num_elements());
    let len: usize = lengths.map(|elements| elements.next_multiple_of(256)).sum();
    (len.div_ceil(num_shards).next_multiple_of(256) * num_shards * dtype.size_bytes()) as u64
}

/// What a rank receives in a step, by the formula.
fn expected(
    layout: &ModelLayout,
    dtype: DType,
    policy: Policy,
    mesh: [usize; 2],
    micro_batches: usize,
    tied: bool,
) -> Traffic {
    let [replicate, shard] = mesh.map(|ranks| ranks as u64);
    let last = layout.units.len() - 1;
    let (mut gathered, mut reduced, mut of_replicas) = (0, 0, 0);
    for unit in 0..=last {
        let bytes = padded_bytes(layout, unit, dtype, shard as usize);
        let visits = match (policy.reshard_after_forward, unit) {
            (false, _) => 1,
            // From the head's forward visit on, what it uses stays for its backward visit, which comes next.
            (true, _) if unit == last => 1,
            (true, 0) if tied => 3,
            (true, _) => 2,
        };
        gathered += visits * bytes * (shard - 1) / shard;
        reduced += bytes * (shard - 1) / shard;
        // Sums of replicas are in f32 and go both ways, once a step.
        let shard_bytes = bytes / shard / dtype.size_bytes() as u64 * 4;
        of_replicas += 2 * shard_bytes * (replicate - 1) / replicate;
    }
    let micro_batches = micro_batches as u64;
    Traffic { gathered: micro_batches * gathered, reduced: micro_batches * reduced + of_replicas }
}

#[test]
fn ranks_receive_what_the_formula_says() {
    let dataset = rows(50, &[(9, 2), (14, 0), (5, 1), (11, 3), (16, 0), (7, 2), (3, 0), (12, 5)]);
    for mesh in [[1, 2], [1, 3], [1, 4], [2, 2], [2, 1]] {
        for (tied, reshard_after_forward, recompute_every, dtype, micro_batches) in [
            (false, true, 0, DType::F32, 1),
            (false, false, 0, DType::Bf16, 2),
            (true, true, 0, DType::Bf16, 2),
            (true, false, 0, DType::F32, 1),
            (true, true, 1, DType::F32, 2),
            (false, true, 1, DType::Bf16, 1),
        ] {
            let policy = Policy { reshard_after_forward, recompute_every, ..Policy::default() };
            let what = format!("{mesh:?}, {dtype}, tied {tied}, {policy:?}, {micro_batches} micro-batches");
            let [replicate, shard] = mesh;
            let steps = dist::run_threads(replicate * shard, |world: Communicator| {
                let rank = world.rank();
                let mesh = Mesh::new(world.clone(), replicate, shard)?;
                let mut trainer = Trainer::on_mesh(tiny::shape(tied), dtype, policy, adamw(), backend(1), &mesh, None);
                let window = vec![batch(&dataset, [2 * rank % 8]); micro_batches];
                // The second step is like any other; the first one might not be.
                let mut of_steps = Vec::new();
                for _ in 0..2 {
                    let before = world.traffic();
                    trainer.step(&window, 1e-2).expect("tokens to train on");
                    world.barrier().wait()?;
                    let after = world.traffic();
                    of_steps.push(Traffic {
                        gathered: after.gathered - before.gathered,
                        reduced: after.reduced - before.reduced,
                    });
                }
                Ok::<_, dist::Error>((trainer.model.layout().clone(), of_steps))
            });
            for (layout, of_steps) in steps.expect("all ranks train") {
                let expected = expected(&layout, dtype, policy, mesh, micro_batches, tied);
                assert!(expected.reduced > 0 && (expected.gathered > 0) == (shard > 1), "{what}: {expected:?}");
                assert_eq!(of_steps, [expected; 2], "{what}");
            }
        }
    }
}
