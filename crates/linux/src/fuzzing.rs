//! Every parser on any bytes.
