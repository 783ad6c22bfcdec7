"""A small Llama, trained on a mesh of devices and on one."""
