//! Long delays: the only room that names redis.
