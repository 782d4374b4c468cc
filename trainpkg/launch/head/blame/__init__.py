"""How ranks fare, and which end is the cause of a failure and which its victims. Told of messages; starts nothing."""
