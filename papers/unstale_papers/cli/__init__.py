"""The commands `unstale reproduce` and `unstale sweep`, entry points of the group `unstale.commands`."""
