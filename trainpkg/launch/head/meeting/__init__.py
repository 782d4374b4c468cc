"""How the nodes of a job meet: who may come in, what each says of itself, and the address that all of them reach."""
