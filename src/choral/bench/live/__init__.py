"""How far text lags behind speech in live sessions."""
