"""How far chains had come that are kept elsewhere, such as the console's audit trail: the subject `anchors` of the log."""
