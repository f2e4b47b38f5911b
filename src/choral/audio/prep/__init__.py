"""All work on a CPU before the engine: fetching in threads, decoding in processes, bounded in memory."""
