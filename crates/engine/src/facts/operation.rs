//! The operations that a budget protects against.

/// An operation that disrupts a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// The eviction API.
    Evict,
    /// A plain delete.
    Delete,
    /// A change of the spec that replaces or restarts containers.
    Update,
    /// A change of resources in place.
    Resize,
    /// A change of labels or owners that takes the pod out of a budget or a group.
    Relabel,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 5] = [Self::Evict, Self::Delete, Self::Update, Self::Resize, Self::Relabel];

    /// The operations that may be assumed where a budget names none, or none that can be read. `Relabel` must be named:
    /// labels move for good reasons, such as the fail-over of a database.
    pub const ASSUMED: [Self; 4] = [Self::Evict, Self::Delete, Self::Update, Self::Resize];

    /// Its name, as in the spec of a budget, in metrics and in Events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Evict => "Evict",
            Self::Delete => "Delete",
            Self::Update => "Update",
            Self::Resize => "Resize",
            Self::Relabel => "Relabel",
        }
    }

    /// Its verb, as in a command.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Evict => "evict",
            Self::Delete => "delete",
            Self::Update => "update",
            Self::Resize => "resize",
            Self::Relabel => "relabel",
        }
    }

    /// Whether it ends the pod.
    pub fn removes(self) -> bool {
        matches!(self, Self::Evict | Self::Delete)
    }
}

/// A set of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operations(u8);

impl Operations {
    /// The set of these.
    pub fn of(operations: &[Operation]) -> Self {
        Self(operations.iter().fold(0, |bits, &op| bits | 1 << op as u8))
    }

    /// All sets that contain an operation.
    pub(crate) fn with(operation: Operation) -> impl Iterator<Item = Self> {
        (0..1 << Operation::ALL.len()).map(Self).filter(move |set| set.contains(operation))
    }

    /// Whether an operation is in it.
    pub fn contains(self, operation: Operation) -> bool {
        self.0 & (1 << operation as u8) != 0
    }
}
