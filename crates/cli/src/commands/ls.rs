//! `tune ls`: recipes and their built-in configs, two columns as torchtune prints them. Recipes that this version does not
//! run say so in a third.

use std::fmt::Write;

use recipes::registry;

use crate::exit::Result;

/// Least width of a column.
const COLUMN: usize = 40;

/// Prints the table.
pub(crate) fn run() -> Result {
    super::print(&table())
}

fn table() -> String {
    let names = registry::all().iter().flat_map(|r| std::iter::once(r.name).chain(r.configs.iter().map(|c| c.name)));
    let width = names.map(str::len).max().unwrap_or(0).max(COLUMN);
    let mut text = String::new();
    let mut line = |recipe: &str, config: &str, note: &str| {
        let row = format!("{recipe:width$} {config:width$} {note}");
        let _ = writeln!(text, "{}", row.trim_end());
    };
    line("RECIPE", "CONFIG", "");
    for recipe in registry::all() {
        let note = if recipe.is_available { "" } else { "not available yet" };
        // A recipe without configs has one row too.
        let first = recipe.configs.first().map_or("<>", |config| config.name);
        line(recipe.name, first, note);
        recipe.configs.iter().skip(1).for_each(|config| line("", config.name, ""));
    }
    text
}
