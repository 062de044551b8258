//! The memory plan of a config, without the files that it speaks of: `tune validate --plan`.

use std::fmt;

use config::{Merged, Problems};

use crate::finetune::{Finetune, MeshShape, mesh_shape};
use crate::memory_plan::{MemoryPlan, Shape, gib};
use crate::model_folder::ModelFolder;
use crate::{Launch, Result};

/// Tokens of the longest row where nothing limits it.
const ASSUMED_TOKENS: usize = 2048;

/// What each rank of a run needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanReport {
    /// The plan of one rank.
    pub plan: MemoryPlan,
    /// Ranks.
    pub num_ranks: usize,
    /// The most that is planned for: rows and tokens.
    pub most: String,
}

impl Finetune {
    /// The plan of a config that checks clean.
    pub(crate) fn plan(&self, config: &Merged, launch: &Launch<'_>) -> Result<PlanReport> {
        let mut problems = Problems::new();
        let settings = self.check(config, &mut problems);
        let num_ranks = launch.ranks.count();
        let mesh = match &settings {
            Some(settings) if self.on_ranks => mesh_shape(settings, num_ranks, config, &mut problems),
            _ => MeshShape::ONE,
        };
        problems.finish()?;
        let settings = settings.expect("whatever could not be read is a problem");
        let section = settings.model_section();
        let model = ModelFolder::describe(&settings.checkpointer.0.checkpoint_dir, &section)?;
        let limit = config.root().at("tokenizer.max_seq_len").and_then(|node| match node.value() {
            config::Value::Int(limit) => usize::try_from(*limit).ok(),
            _ => None,
        });
        let tokens = limit.unwrap_or(ASSUMED_TOKENS).min(model.config().max_position_embeddings);
        let backend = launch.open(settings.device.as_deref(), launch.ranks.first_share())?;
        let shape = Shape::of(&settings, mesh, tokens);
        let goal = self.describe_goal(&settings)?;
        let plan = MemoryPlan::new(&goal, &model, &settings.optimizer, &shape, &*backend)?;
        let assumed = if limit.is_none() { ", assumed: `tokenizer.max_seq_len` sets no limit" } else { "" };
        let most = format!("batch_size {} and rows of {tokens} tokens{assumed}", settings.batch_size);
        Ok(PlanReport { plan, num_ranks, most })
    }
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = if self.num_ranks == 1 { String::new() } else { format!(" of each of {} ranks", self.num_ranks) };
        writeln!(f, "memory{ranks}, for {}", self.most)?;
        let total = self.plan.total();
        let of_all = (self.num_ranks > 1).then(|| ("total of all ranks", total * self.num_ranks as u64));
        let files = Some(("in files", self.plan.files)).filter(|(_, bytes)| *bytes > 0);
        let free = metrics::available_memory().map(|free| ("free here", free));
        let more = [Some(("total", total)), of_all, files, free].into_iter().flatten();
        let parts = self.plan.parts().into_iter().filter(|(_, bytes)| *bytes > 0);
        for (name, bytes) in parts.chain(more) {
            writeln!(f, "  {name:20} {:>10}", gib(bytes))?;
        }
        Ok(())
    }
}
