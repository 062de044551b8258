//! Stage two, *merged*: the file with its overrides and every `${…}` replaced by its value. Nothing is typed, dropped
//! or defaulted yet; this is the stage that compares with what torchtune merges.

use std::path::Path;

use crate::error::Error;
use crate::json_text::to_json;
use crate::node::Node;
use crate::problems::Problem;
use crate::resolve::resolve;
use crate::written::Written;
use crate::yaml_text::{Order, to_yaml};

/// A config without references left; every node knows its dotted path.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    root: Node,
}

impl Merged {
    /// Reads a file, applies command-line arguments and resolves references.
    pub fn read<S: AsRef<str>>(path: impl AsRef<Path>, arguments: &[S]) -> Result<Self, Error> {
        Written::read(path)?.with_overrides(arguments)?.resolve()
    }

    /// The same from text; `name` is what messages call the file.
    pub fn from_text(name: impl Into<String>, text: impl Into<String>) -> Result<Self, Error> {
        Written::parse(name, text)?.resolve()
    }

    /// The tree, with a broken value wherever a problem is told.
    pub(crate) fn new(root: &Node, env: &dyn Fn(&str) -> Option<String>) -> (Self, Vec<Problem>) {
        let (root, problems) = resolve(root, env);
        (Self { root }, problems)
    }

    /// The tree.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// The tree as YAML text.
    pub fn to_yaml(&self, order: Order) -> String {
        to_yaml(&self.root, order)
    }

    /// The tree as JSON; numbers that are not finite are the strings `.inf`, `-.inf`, `.nan`.
    pub fn to_json(&self, order: Order) -> serde_json::Value {
        to_json(&self.root, order)
    }
}
