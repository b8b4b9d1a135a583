"""Always-on sources: kept running, paused, stopped."""
