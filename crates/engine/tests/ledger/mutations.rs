//! Each rule of the protocol left out once: the search must find what it is there for.
