//! The objects of Quorate, and the few fields of foreign ones that matter.
