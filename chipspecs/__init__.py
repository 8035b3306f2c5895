"""The chip specs that meshc ships, one TOML file each."""
