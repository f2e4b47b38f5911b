"""Live audio over WebSockets, with the events of OpenAI's Realtime transcription."""
