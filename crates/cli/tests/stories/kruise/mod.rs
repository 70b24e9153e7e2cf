//! OpenKruise's PodUnavailableBudgets, served by Quorate.

mod announced;
mod clone_set;
mod concurrent;
mod decisions;
mod groups;
mod overlaps;
mod scaling;
mod served;
mod updates;
