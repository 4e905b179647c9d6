pub struct MemoryStore;
