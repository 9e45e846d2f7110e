"""Drop-in replacements for the multi-scale deformable attention of other libraries.

`transformers`, `mmcv` and `research` replace the operator inside code that exists already;
`torchvision` is the operator for a list of feature maps. Nothing here is imported by
`import msda_attn`.
"""
