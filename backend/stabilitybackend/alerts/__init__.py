"""Alerting as a part of this server: which incidents are news, who gets them, what people press in a message."""
